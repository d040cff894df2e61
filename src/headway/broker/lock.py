"""Reads the lock file `kafka.lock`, which has the exact version, size and SHA-256 checksum of each jar of Apache Kafka.

Every start of a broker reads this file. To write it for another version of Kafka, change `KAFKA_VERSION` and run
`python -c "from headway.broker.lock import write_lock; write_lock()"`.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

KAFKA_VERSION = "4.3.1"

# slf4j-simple writes to stderr, which is redirected to the node's log file, and it starts faster than Log4j.
ROOTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar in the lock file."""

    group: str
    artifact: str
    version: str
    size: int
    sha256: str

    @property
    def path(self) -> Path:
        """The jar's path in a Maven repository."""
        directory = Path(*self.group.split("."), self.artifact, self.version)
        return directory / f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version} {self.size} {self.sha256}"


def parse_line(line: str) -> Jar:
    """Parse a line of the lock file.

    >>> parse_line("org.slf4j:slf4j-api:1.7.36 41125 d3ef57").path.name
    'slf4j-api-1.7.36.jar'
    """
    coordinates, size, sha256 = line.split()
    group, artifact, version = coordinates.split(":")
    return Jar(group, artifact, version, int(size), sha256)


def lock_text() -> str:
    """Return the text of the lock file."""
    return resources.files(__package__).joinpath("kafka.lock").read_text(encoding="utf-8")


@cache
def locked_jars() -> tuple[Jar, ...]:
    """Return the jars of a local broker, in the order of its class path."""
    return tuple(parse_line(line) for line in lock_text().splitlines() if not line.startswith("#"))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _resolve() -> list[Jar]:
    from headway.broker.jars import maven  # noqa: PLC0415 - only needed to write a new lock

    context = maven()
    roots, transitive = context.resolver.resolve([context.create_dependency(root) for root in ROOTS])
    artifacts = [d.artifact for d in [*roots, *transitive] if d.scope in (None, "compile", "runtime")]
    paths = [artifact.resolve() for artifact in artifacts]
    return [
        Jar(a.groupId, a.artifactId, a.version, path.stat().st_size, sha256_of(path))
        for a, path in zip(artifacts, paths, strict=True)
    ]


def write_lock() -> None:
    """Resolve Kafka's jars and their dependencies with Maven, and write them to the lock file."""
    header = "# Written by headway.broker.lock.write_lock: coordinates, size in bytes, SHA-256.\n"
    text = header + "".join(f"{jar}\n" for jar in _resolve())
    Path(__file__).with_name("kafka.lock").write_text(text, encoding="utf-8")
