"""Finds a Java for Apache Kafka and Spark: the installed Java if it is recent enough, otherwise a downloaded one."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headway.broker.jars import cache_dir, innermost_reason
from headway.errors import LocalBrokerError

MINIMUM = 17


def find_java(minimum: int = MINIMUM) -> Path:
    """Return a `java` program of at least version `minimum`, from JAVA_HOME or PATH, or downloaded with cjdk."""
    for java in installed_javas():
        version = java_version(java)
        if version is not None and version >= minimum:
            return java
    return fetch_java(minimum)


def java_home(java: Path) -> Path:
    """Return the directory to which JAVA_HOME must be set for this `java` program."""
    return java.resolve().parent.parent


def java_version(java: Path) -> int | None:
    """Return the feature version of a `java` program, such as 17, or None if it does not work."""
    release = java_home(java) / "release"
    try:
        text = release.read_text(encoding="utf-8")
    except OSError:
        text = _ask(java)  # some Javas, and the placeholder program on macOS, have no such file
    return parse_version(text)


def parse_version(text: str) -> int | None:
    """Parse the feature version from a `release` file or the output of `java -version`.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('JAVA_VERSION="1.8.0_442"')
    (17, 8)
    """
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def installed_javas() -> Iterator[Path]:
    """Yield the `java` programs from JAVA_HOME and PATH, of any version. Some might be missing or broken."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)


def _ask(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the arguments are our own
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr


def fetch_java(minimum: int) -> Path:
    """Download a Java, unless the cache has it already. Returns the path of its `java` program."""
    try:
        import cjdk  # noqa: PLC0415 - needed only if no suitable Java is installed

        return cjdk.java_home(version=str(minimum), cache_dir=cache_dir() / "java") / "bin" / "java"
    except Exception as error:  # errors of cjdk, and errors of the network
        raise LocalBrokerError(
            f"No Java {minimum} or newer was found in JAVA_HOME or on PATH, and none could be downloaded "
            f"({innermost_reason(error)}). Install one (`apt install openjdk-{minimum}-jre-headless`, "
            f"`brew install openjdk@{minimum}`), or set JAVA_HOME to one."
        ) from error
