"""The Java parallel consumer, fetched by its Maven coordinates where it can be had, and compiled with a program."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _cpu_clock import Cost

from headway import Ordering
from headway.broker.jars import innermost_reason, maven
from headway.broker.java import find_java
from headway.errors import HeadwayError

PARALLEL_CONSUMER = "io.confluent.parallelconsumer:parallel-consumer-core:0.5.3.2"
PROGRAM = Path(__file__).with_name("ParallelConsumerPeer.java")
COMPILER = "jdk.compiler/com.sun.tools.javac.Main"
PATIENCE = 300.0  # seconds for one run


@dataclass(frozen=True, slots=True)
class JavaPeer:
    """Runs the program, each time in a process of its own."""

    java: Path
    classpath: str

    def cost(self, servers: str, topic: str, count: int, ordering: Ordering, slots: int, seconds: float) -> Cost:
        """What a record costs that takes a fixed time."""
        nanoseconds = str(int(seconds * 1e9))
        found = self._run(servers, topic, str(count), ordering.name, str(slots), nanoseconds)
        return Cost(*map(float, found.split()))

    def calls(
        self, servers: str, topic: str, seconds: Sequence[float], ordering: Ordering, slots: int
    ) -> list[tuple[int, float, float]]:
        """The offset, begin and end of each call, where each offset of the one partition has its time."""
        with tempfile.NamedTemporaryFile("w") as file:
            file.writelines(f"{int(each * 1e9)}\n" for each in seconds)
            file.flush()
            found = self._run(servers, topic, str(len(seconds)), ordering.name, str(slots), "0", file.name)
        rows = (line.split() for line in found.splitlines())
        return [(int(offset), int(began) / 1e9, int(ended) / 1e9) for offset, began, ended in rows]

    def _run(self, *words: str) -> str:
        command = [str(self.java), "-cp", self.classpath, PROGRAM.stem, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise RuntimeError(f"The Java parallel consumer failed:\n{done.stderr}")
        return done.stdout


@contextmanager
def java_peer() -> Iterator[JavaPeer | None]:
    """The peer, compiled; or None, with a sentence on the console, where it cannot be had."""
    try:
        java, jars = find_java(), _jars()
        modules = subprocess.run([java, "--list-modules"], check=True, capture_output=True, text=True).stdout
        missing = "" if COMPILER.split("/", maxsplit=1)[0] in modules else f"{java} has no compiler; install a JDK"
    except (OSError, RuntimeError, ValueError, HeadwayError, subprocess.SubprocessError) as error:
        missing = innermost_reason(error)
    if missing:
        print(f"Without the Java parallel consumer: {missing}.")
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        classpath = os.pathsep.join([folder, *jars])
        compiler = [str(java), "-m", COMPILER, "-cp", classpath, "-d", folder, str(PROGRAM)]
        done = subprocess.run(compiler, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield JavaPeer(java, classpath)


def _jars() -> list[str]:
    """The consumer and what it needs."""
    context = maven()
    roots, further = context.resolver.resolve([context.create_dependency(PARALLEL_CONSUMER)])
    needed = [each.artifact for each in [*roots, *further] if each.scope in (None, "compile", "runtime")]
    return [str(artifact.resolve()) for artifact in needed]
