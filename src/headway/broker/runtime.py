"""How a node's Java process is started: the Java, the jars and the options."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.broker.jars import class_data_dir, ensure_jars
from headway.broker.java import find_java
from headway.broker.lock import lock_text

# A local broker runs for minutes. With only the fast compiler it starts sooner and takes a third less CPU for the same
# throughput (measured with 3 million records on two cores). The simplest garbage collector is enough for its small
# heap.
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx512m")
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


@dataclass(frozen=True, slots=True)
class ClassData:
    """The JVM's archive of Kafka's loaded classes, which halves the time to start.

    The JVM writes the archive when a node that was started without one stops. It goes to a file of this cluster first,
    so that another cluster never maps an unfinished one. The JVM itself ignores an archive of other jars.
    """

    unfinished: Path

    @property
    def archive(self) -> Path:
        """The archive that starts use."""
        return self.unfinished.with_suffix("")

    @property
    def needed(self) -> bool:
        """True if there is no archive yet."""
        return not self.archive.exists()

    def option(self, record: bool) -> list[str]:
        """Return the JVM option that uses the archive. If there is none, return the one that writes it if `record`."""
        if not self.needed:
            return [f"-XX:SharedArchiveFile={self.archive}"]
        return [f"-XX:ArchiveClassesAtExit={self.unfinished}"] if record else []

    def keep(self, complete: bool) -> None:
        """Put a newly written archive in use, or remove it if its node was killed while writing."""
        if complete and self.unfinished.exists():
            self.unfinished.replace(self.archive)
        self.unfinished.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java, and the jars of Apache Kafka."""

    java: Path
    jars: Sequence[Path]
    options: Sequence[str]
    class_data: ClassData

    def command(self, main: str, *arguments: str, record: bool = False) -> list[str]:
        """Return the command line that runs one of Kafka's main classes."""
        options = [*_OPTIONS, *_LOGGING, *self.class_data.option(record), *self.options]
        class_path = ":".join(map(str, self.jars))
        return [str(self.java), *options, "-cp", class_path, main, *arguments]


def find_runtime(options: Sequence[str] = ()) -> Runtime:
    """Return the Java and the jars to run, after downloading any that are missing."""
    java = find_java()
    jars = ensure_jars()
    class_data_dir().mkdir(parents=True, exist_ok=True)
    return Runtime(java, jars, options, ClassData(class_data_dir() / f"{_key(java)}.jsa.{uuid.uuid4().hex}"))


def _key(java: Path) -> str:
    """Return a key that differs between the Javas on a machine, and after an update of one of them."""
    return hashlib.sha256(f"{java.resolve()} {java.stat().st_mtime_ns} {lock_text()}".encode()).hexdigest()[:12]
