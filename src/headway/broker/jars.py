"""Downloads the jars of Apache Kafka into the user's cache, and verifies them.

After a download, the SHA-256 of each jar is compared with the one in `kafka.lock`, and a marker file records the
success. Later starts compare only the sizes, which takes a millisecond and still detects a truncated file.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from headway.broker.lock import KAFKA_VERSION, Jar, lock_text, locked_jars, sha256_of
from headway.errors import LocalBrokerError

if TYPE_CHECKING:
    from jgo.maven import MavenContext

_ATTEMPTS = 3
_CONNECTIONS = 4

Advance = Callable[[int], None]


def cache_dir() -> Path:
    """Return the directory for downloads: `HEADWAY_CACHE` if it is set, otherwise the user's cache directory.

    Raises `LocalBrokerError` if the user has no home directory, for example in a container with an unknown user.
    """
    if given := os.environ.get("HEADWAY_CACHE"):
        return Path(given)
    try:
        return platformdirs.user_cache_path("headway")
    except RuntimeError as error:
        raise LocalBrokerError(
            f"There is no default directory for downloads: {error}. Set the environment variable HEADWAY_CACHE to a "
            "directory."
        ) from error


def class_data_dir() -> Path:
    """Return the directory for the archives in which the JVM stores loaded classes."""
    return cache_dir() / "class-data"


def ensure_jars() -> list[Path]:
    """Download the jars of Apache Kafka that are missing or damaged. Returns the paths of all jars."""
    if not _installed():
        with _one_at_a_time():
            if not _installed():
                _install()
    return [_path(jar) for jar in locked_jars()]


def maven(progress: Any = None) -> "MavenContext":
    """Return a Maven client that uses the repositories from the user's jgo configuration and Headway's own cache."""
    from jgo.config import GlobalSettings  # noqa: PLC0415 - not needed once the jars are downloaded
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415 - as above

    context = MavenContext(PythonResolver(progress_callback=progress), _repository(), timeout=30)
    context.remote_repos |= GlobalSettings.load().repositories
    return context


def _repository() -> Path:
    return cache_dir() / "maven"


def _path(jar: Jar) -> Path:
    return _repository() / jar.path


def _marker() -> Path:
    digest = hashlib.sha256(lock_text().encode()).hexdigest()
    return cache_dir() / f"kafka-{KAFKA_VERSION}-{digest[:12]}.verified"


def _installed() -> bool:
    return _marker().exists() and all(_has_size(jar) for jar in locked_jars())


def _has_size(jar: Jar) -> bool:
    try:
        return _path(jar).stat().st_size == jar.size
    except FileNotFoundError:
        return False


def _is_good(jar: Jar) -> bool:
    return _has_size(jar) and sha256_of(_path(jar)) == jar.sha256


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock the cache, so that only one process downloads. If this process dies, the kernel releases the lock."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        lock = (cache_dir() / "install.lock").open("w")
    except OSError as error:
        raise LocalBrokerError(
            f"The download directory {cache_dir()} cannot be used: {error.strerror}. Set the environment variable "
            "HEADWAY_CACHE to another one."
        ) from error
    with lock as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install() -> None:
    _marker().unlink(missing_ok=True)
    shutil.rmtree(class_data_dir(), ignore_errors=True)  # the JVM ignores archives made from jars that have changed
    wanted = [jar for jar in locked_jars() if not _is_good(jar)]
    if wanted:
        with _progress_bar(sum(jar.size for jar in wanted)) as advance:
            _fetch_all(wanted, advance)
    _marker().touch()


@contextmanager
def _progress_bar(total: int) -> Iterator[Advance]:
    from rich.console import Console  # noqa: PLC0415 - not needed once the jars are downloaded
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"Apache Kafka {KAFKA_VERSION}", total=total)
        yield lambda size: progress.advance(task, size)


def _fetch_all(jars: list[Jar], advance: Advance) -> None:
    @contextmanager
    def each_file(_name: str, _size: int) -> Iterator[Advance]:
        yield advance

    context = maven(progress=each_file)
    pool = ThreadPoolExecutor(_CONNECTIONS, "headway-jars")
    try:
        for fetched in [pool.submit(_fetch, context, jar) for jar in jars]:
            fetched.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch(context: "MavenContext", jar: Jar) -> None:
    """Download a jar. If the download fails or the file is damaged, try again from the beginning."""
    reason = "its SHA-256 differs from the one in kafka.lock"
    for _ in range(_ATTEMPTS):
        _path(jar).unlink(missing_ok=True)
        try:
            context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
        except (OSError, RuntimeError) as error:  # the errors of requests are OSErrors; jgo raises RuntimeError
            reason = innermost_reason(error)
            continue
        if _is_good(jar):
            return
    raise LocalBrokerError(
        f"{jar.path.name} of Apache Kafka {KAFKA_VERSION} could not be downloaded ({reason}). Check the network, "
        f"or the proxy in HTTPS_PROXY, and start again. Finished downloads are kept in {cache_dir()}."
    )


def innermost_reason(error: Exception) -> str:
    """Return the message of the innermost error in a chain. For a failed download, that is the network error."""
    while (inner := error.__cause__ or error.__context__) is not None and isinstance(inner, Exception):
        error = inner
    return str(error) or type(error).__name__
