"""The data directory of a local Apache Kafka: its content, and the checks before a broker starts in it."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from headway.broker.node import Node, client_addresses
from headway.errors import ConfigError, LocalBrokerError

_DESCRIPTION = "broker.json"
_START_LOCK = "start.lock"
# How long to wait for Kafka's lock, in seconds. A killed process keeps its files for a moment after it becomes a
# zombie.
_FREED_WITHIN = 2.0
_LOOK_AGAIN_AFTER = 0.02


def default_data_dir(ephemeral: bool = False, secure: bool = False) -> Path:
    """Return the default data directory of `headway broker start`.

    Raises `LocalBrokerError` if the user has no home directory, for example in a container with an unknown user.
    """
    name = f"{'ephemeral-' * ephemeral}{'secure-' * secure}broker"
    try:
        return platformdirs.user_data_path("headway") / name
    except RuntimeError as error:
        raise LocalBrokerError(
            f"There is no default directory for a broker's data: {error}. Choose one with the option --data-dir, with "
            "data_dir= of LocalBroker, or with the environment variable XDG_DATA_HOME."
        ) from error


def security_dir(data_dir: Path) -> Path:
    """Return the directory of a secured broker's certificates, passwords and settings files."""
    return data_dir / "security"


def canonical_path(data_dir: str | PathLike[str]) -> Path:
    """Return the canonical path of a data directory: absolute, without symbolic links or `..`.

    Raises `ConfigError` if the path cannot be resolved, or if Kafka does not accept it.
    """
    try:
        path = Path(data_dir).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"data_dir {str(data_dir)!r} cannot be used: {error}. Choose another directory.") from error
    if "," in str(path):
        raise ConfigError(
            f"data_dir is {path}; it must not contain a comma, because commas separate the paths in Kafka's log.dirs."
        )
    return path


class NodeDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ports of a node."""

    id: int
    port: int
    controller_port: int
    tls_port: int | None = None


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file `broker.json`, which describes the cluster in a data directory."""

    cluster_id: str
    ephemeral: bool
    class_data: str
    nodes: Sequence[NodeDescription]
    secure: bool = False

    def write(self, data_dir: Path) -> None:
        """Write the description to the data directory, completely or not at all."""
        unfinished = data_dir / f"{_DESCRIPTION}.new"
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        unfinished.replace(data_dir / _DESCRIPTION)

    def nodes_in(self, data_dir: Path) -> list[Node]:
        """Return the cluster's nodes. Each node object finds the process that runs the node, if there is one."""
        return [
            Node(n.id, n.port, n.controller_port, data_dir / f"node-{n.id}", tls_port=n.tls_port) for n in self.nodes
        ]


def read_description(data_dir: Path) -> Description | None:
    """Read the description of the cluster in `data_dir`. Returns None if the directory has no description."""
    try:
        return msgspec.json.decode((data_dir / _DESCRIPTION).read_bytes(), type=Description)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalBrokerError(
            f"{data_dir / _DESCRIPTION} cannot be read ({error.strerror}). Choose another --data-dir, or run this as "
            "the user who owns that broker."
        ) from error
    except ValueError as error:  # the errors of msgspec are subclasses of ValueError
        raise LocalBrokerError(
            f"{data_dir / _DESCRIPTION} is damaged ({error}). Restore it from a backup, or delete {data_dir} to "
            "start without its records."
        ) from error


def running_servers(data_dir: Path) -> str | None:
    """Return the client addresses of the broker in `data_dir`, or None if no broker is running there."""
    description = read_description(data_dir)
    nodes = description.nodes_in(canonical_path(data_dir)) if description else []
    return client_addresses(nodes) if any(node.running for node in nodes) else None


@contextmanager
def starting_in(data_dir: Path) -> Iterator[None]:
    """Lock the directory while a broker starts in it, or while it is deleted.

    Raises `LocalBrokerError` if another process has locked it. Raises the same error for a directory inside another
    broker's directory, because that broker might delete it with its data.
    """
    _require_outside_of_others(data_dir)  # before this process creates anything in the directory
    with _lock(data_dir):
        # Check again, because another broker may be starting at the same time: now either that broker finds our lock,
        # or we find its file.
        _require_outside_of_others(data_dir)
        yield


def _lock(data_dir: Path) -> IO[str]:
    """Lock the directory, and return the lock file. The lock ends when the file is closed or the process dies."""
    while True:
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (data_dir / _START_LOCK).open("w")
        except OSError as error:
            raise LocalBrokerError(
                f"The data directory {data_dir} cannot be used: {error.strerror}. Choose another one (--data-dir)."
            ) from error
        if not _try_lock(file):
            file.close()
            raise LocalBrokerError(
                f"Another process is starting a broker in {data_dir}. Wait until it has started, or choose another "
                "data directory."
            )
        # When an ephemeral broker ends, it deletes its directory and the lock file in it. A lock on a deleted file
        # protects nothing, so check that the file still exists.
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), (data_dir / _START_LOCK).stat()):
                return file
        file.close()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_outside_of_others(data_dir: Path) -> None:
    for parent in data_dir.parents:
        if (parent / _DESCRIPTION).is_file() or _is_being_started(parent):
            raise LocalBrokerError(
                f"{data_dir} is inside {parent}, the data directory of another broker. Choose one outside it."
            )


def _is_being_started(data_dir: Path) -> bool:
    try:
        with (data_dir / _START_LOCK).open() as file:
            return not _try_lock(file)
    except OSError:
        return False


def claim(data_dir: Path, ephemeral: bool) -> Description | None:
    """Check that a cluster can start in `data_dir`. Returns the description of an earlier cluster to continue, or None.

    Deletes the data of an earlier ephemeral cluster whose process died.
    """
    earlier = read_description(data_dir)
    if earlier is None:
        _require_unused(data_dir)
        return None
    _require_stopped(data_dir, earlier)
    _require_unheld(data_dir, earlier)
    if earlier.ephemeral:  # the process died before it could delete the data
        for node in earlier.nodes_in(data_dir):
            remove(node.directory)
        remove(security_dir(data_dir))
        return None
    if ephemeral:
        raise LocalBrokerError(
            f"{data_dir} holds the records of a broker that is not ephemeral, and an ephemeral broker would delete "
            "them when it stops. Choose another --data-dir, or leave out --ephemeral."
        )
    return earlier


def remove(data_dir: Path) -> None:
    """Delete the files of an ephemeral broker."""
    shutil.rmtree(data_dir, ignore_errors=True)


def remove_stopped(data_dir: Path) -> None:
    """Delete the files of a stopped ephemeral broker, unless another broker has started there in the meantime."""
    if not data_dir.exists():
        return
    # A `LocalBrokerError` means that another broker is starting there. That broker deletes the old files itself.
    with suppress(LocalBrokerError), starting_in(data_dir):
        left = read_description(data_dir)
        if left is not None and left.ephemeral:
            _require_stopped(data_dir, left)
            remove(data_dir)


def _require_unused(data_dir: Path) -> None:
    """Raise `LocalBrokerError` if the directory has other files, because an ephemeral broker deletes its directory."""
    if {path.name for path in data_dir.iterdir()} - {_START_LOCK}:
        raise LocalBrokerError(
            f"{data_dir} is not empty, but it is not the data directory of a Headway broker. Choose an empty or new "
            "data directory."
        )


def _require_stopped(data_dir: Path, earlier: Description) -> None:
    for node in earlier.nodes_in(data_dir):
        if node.running:
            raise LocalBrokerError(
                f"A broker is already running in {data_dir} (process {node.pid}, port {node.port}). Use it, stop it "
                f"with `headway broker stop --data-dir {data_dir}`, or choose another data directory."
            )


def _require_unheld(data_dir: Path, earlier: Description) -> None:
    """Raise `LocalBrokerError` if Kafka's own lock shows that a process uses the data, perhaps under another path."""
    deadline = time.monotonic() + _FREED_WITHIN
    while any(node.holds_data for node in earlier.nodes_in(data_dir)):
        if time.monotonic() > deadline:
            raise LocalBrokerError(
                f"The data in {data_dir} is in use by a broker that was started with another path, for example before "
                "the directory was moved. End that process, or choose another data directory."
            )
        time.sleep(_LOOK_AGAIN_AFTER)
