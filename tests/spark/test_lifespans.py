"""What a lifespan makes in Spark's Python workers: once in each process, and ended with it."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headway import Context
from headway.spark import InputRow, parallel_map

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_each_python_worker_starts_it_once_and_ends_it_when_the_program_ends_or_its_java_is_killed(
    tmp_path: Path, end: str
) -> None:
    file = tmp_path / "told"
    file.touch()
    command = [sys.executable, "-m", "tests.spark.programs.sharing", "local[2]", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        family: list[psutil.Process] = []
        try:
            await_that(lambda: "done" in file.read_text() or program.poll() is not None)
            started = events(file)
            family = psutil.Process(program.pid).children(recursive=True)
            if end == "kill":
                for process in family:
                    if "java" in process.name():
                        process.kill()
                program.kill()
            else:
                program.communicate(b"\n", timeout=120)
            pids = {pid for what, pid in started if what.startswith("start")}
            assert 1 <= len(pids) <= 2
            await_that(lambda: sum(what.startswith("end") for what, _ in events(file)) >= len(started) - 1)
            assert Counter(events(file)) == Counter(
                [*started, *((what.replace("start", "end"), pid) for what, pid in started if what != "done")]
            )
            await_that(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids))
        finally:
            for process in [*family, psutil.Process(program.pid)] if program.poll() is None else family:
                if process.is_running():
                    process.send_signal(signal.SIGKILL)


def test_a_lifespan_that_cannot_start_ends_the_job_with_a_sentence(spark: SparkSession) -> None:
    @contextmanager
    def no_database() -> Iterator[str]:
        yield open_database()

    def open_database() -> str:
        raise ConnectionError("there is no database")

    def handle(row: InputRow, context: Context) -> int:
        return 1

    frame = parallel_map(spark.range(0, 1, 1, 1), handle, "int", key=None, lifespan=no_database)
    with pytest.raises(
        PySparkException, match=r"The lifespan .*no_database failed at its start .*there is no database"
    ):
        frame.collect()


def events(file: Path) -> list[tuple[str, str]]:
    """What the processes have told, each with its pid."""
    lines = (line.rpartition(" ") for line in file.read_text().splitlines())
    return [(what, pid) for what, _, pid in lines]


def await_that(condition: object) -> None:
    deadline = time.monotonic() + 240
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)
