"""A real Spark cluster on this machine: a standalone master and its workers, each in a process of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from headway.broker.java import find_java, java_home
from headway.broker.ports import free_ports

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
# Two names, as of two machines: Spark starts no second attempt at a task where the first one runs.
WORKER_HOSTS = (HOST, "localhost")
START_WITHIN = 60.0


@dataclass
class Cluster:
    """`url` is what a session has as its master; each worker has one core, and runs one executor for a program."""

    url: str
    directory: Path
    workers: list[psutil.Process] = field(default_factory=list)
    _drivers: list["Driver"] = field(default_factory=list)
    _ending: ExitStack = field(default_factory=ExitStack)

    def add_worker(self) -> None:
        """Start one more worker, and wait until the master knows it."""
        number = len(self.workers)
        host = WORKER_HOSTS[number % len(WORKER_HOSTS)]
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / f"worker-{number}")]
        log = self.directory / f"worker-{number}.log"
        arguments = ["--host", host, "--webui-port", "0", "--port", "0", *size, self.url]
        self.workers.append(self._ending.enter_context(_spark_process("worker.Worker", arguments, log)))
        _await(self.directory / "master.log", r"Registering worker", number + 1)

    def run(self, program: str, *arguments: str) -> "Driver":
        """Start a program of `tests/spark/programs` as a driver."""
        number = len(self._drivers)
        driver = Driver(self, program, arguments, self.directory / f"driver-{number}.log")
        self._drivers.append(driver)
        return driver

    def kill_drivers(self) -> None:
        """Kill the programs that still run."""
        for driver in self._drivers:
            driver.kill()

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks now."""
        children = [child for worker in self.workers for child in worker.children()]
        return [child for child in children if _is_executor(child)]


class Driver:
    """A program that runs on the cluster."""

    def __init__(self, cluster: Cluster, program: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", f"tests.spark.programs.{program}", cluster.url, *arguments]
        with log.open("w") as output:
            # With its Java in a session of its own, to be killed together.
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self, timeout: float) -> None:
        """Wait until it has ended well."""
        code = self._process.wait(timeout)
        assert code == 0, self.log.read_text()[-4000:]

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the program and its Java, as a machine that fails does."""
        for process in [*_family(self._process.pid), psutil.Process(self._process.pid)] if self.running else []:
            _kill(process)
        self._process.wait(30)
        if self._process.stdin:
            self._process.stdin.close()


@contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster whose logs and work are in the directory; it ends with all that runs on it."""
    [port] = free_ports(1)
    with ExitStack() as ending:
        cluster = Cluster(f"spark://{HOST}:{port}", directory, _ending=ending)
        ending.callback(cluster.kill_drivers)
        log = directory / "master.log"
        place = ["--host", HOST, "--webui-port", "0", "--port", str(port)]
        ending.enter_context(_spark_process("master.Master", place, log))
        _await(log, r"I have been elected leader", 1)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


@contextmanager
def _spark_process(name: str, arguments: Sequence[str], log: Path) -> Iterator[psutil.Process]:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=_environment(), stdout=output, stderr=output, start_new_session=True)
    try:
        yield psutil.Process(process.pid)
    finally:
        for child in _family(process.pid):
            _kill(child)
        process.kill()
        process.wait(30)


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it ends in this moment
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    return False


def _environment() -> dict[str, str]:
    java = {"JAVA_HOME": str(java_home(find_java())), "SPARK_DAEMON_MEMORY": "256m"}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    # The tests' own modules are there on every machine, as with --py-files.
    modules = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, **java, **python, "SPARK_LOCAL_IP": HOST, "PYTHONPATH": modules}


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _await(log: Path, pattern: str, times: int) -> None:
    deadline = time.monotonic() + START_WITHIN
    while len(re.findall(pattern, log.read_text())) < times:
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.05)
