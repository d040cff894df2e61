"""What signals do to a program that runs a parallel consumer: real processes, on a real Apache Kafka."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Cluster
from tests.contract.parallel import process_handlers as handlers  # by a name that processes can import too
from tests.contract.parallel.members import (
    committed,
    handled_until_all_is_committed,
    maps_of,
    plain_topic,
    send,
    settings_of,
    wait_for,
)
from tests.contract.parallel.programs import Program, program

pytestmark = pytest.mark.kafka

EXECUTORS: dict[str, dict[str, Any]] = {
    "threads": {"handler": "act"},
    "async": {"handler": "act_async"},
    "process": {"handler": "act", "executor": "process", "processes": 3},
}
executors = pytest.mark.parametrize("executor", EXECUTORS)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(handlers.NOTES, str(path))
    return path


@contextmanager
def running(cluster: Cluster, topic: str, executor: str, max_concurrency: int = 100, **more: Any) -> Iterator[Program]:
    """A program that commits only in the end."""
    options = dict(EXECUTORS[executor])
    handler = options.pop("handler")
    options["max_concurrency"] = max_concurrency
    with program(cluster.config(settings_of(topic)), options, topic, handler, **more) as started:
        yield started


def some_stuck(cluster: Cluster, gate: Path) -> str:
    """A topic of twenty records, of which two wait for a file."""
    topic = plain_topic(cluster)
    values = [f"await {gate}" if i % 10 == 0 else "nothing" for i in range(20)]
    send(cluster, topic, [(f"key-{i}", value) for i, value in enumerate(values)], partition=0)
    return topic


def complete(cluster: Cluster, topic: str) -> set[int]:
    """The offsets that count as done after a restart."""
    [done] = maps_of(committed(cluster, topic)).values()
    return {*range(done.offset), *(offset for run in done.complete for offset in run)}


EASY = {*range(20)} - {0, 10}


@pytest.mark.quick("thread")
@executors
def test_sigterm_lets_what_runs_end_and_nothing_is_repeated(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path, executor: str
) -> None:
    gate = tmp_path / "gate"
    topic = some_stuck(kafka_cluster, gate)
    with running(kafka_cluster, topic, executor) as started:
        started.wait_until(done=18, running=2)
        send(kafka_cluster, topic, [("key-0", "nothing")], partition=0)  # behind what runs: it does not start
        started.popen.terminate()
        wait_for(lambda: "18 2 ending" in started.lines)
        with pytest.raises(AssertionError):
            wait_for(lambda: started.popen.poll() is not None, seconds=0.5)
        gate.touch()
        code, error = started.ended()
    assert (code, error) == (0, "")
    assert started.lines[-1] == "ended"
    assert committed(kafka_cluster, topic) == {0: (20, b"")}
    assert len(handlers.calls(notes)) == 20
    assert handled_until_all_is_committed(kafka_cluster, topic) == [(0, 20)]


@pytest.mark.slow
@executors
def test_a_second_sigterm_ends_it_at_once_and_what_is_done_is_committed(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path, executor: str
) -> None:
    topic = some_stuck(kafka_cluster, tmp_path / "never")
    with running(kafka_cluster, topic, executor) as started:
        started.wait_until(done=18, running=2)
        begin = time.monotonic()
        started.popen.terminate()
        wait_for(lambda: "18 2 ending" in started.lines)  # one signal at a time is remembered
        started.popen.terminate()
        code, _ = started.ended()
    assert time.monotonic() - begin < 20
    assert code == 0
    assert complete(kafka_cluster, topic) == EASY


@pytest.mark.slow
def test_processes_of_the_pool_do_not_mind_a_sigterm_that_reaches_all(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    topic = some_stuck(kafka_cluster, gate)
    with running(kafka_cluster, topic, "process") as started:
        started.wait_until(done=18, running=2)
        for process in {call.process for call in handlers.calls(notes)} | {started.popen.pid}:
            os.kill(process, signal.SIGTERM)
        gate.touch()
        assert started.ended() == (0, "")
    assert committed(kafka_cluster, topic) == {0: (20, b"")}


@pytest.mark.quick("async")
@executors
def test_ctrl_c_ends_it_at_once_and_what_is_done_is_committed(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path, executor: str
) -> None:
    topic = some_stuck(kafka_cluster, tmp_path / "never")
    with running(kafka_cluster, topic, executor) as started:
        started.wait_until(done=18, running=2)
        begin = time.monotonic()
        started.popen.send_signal(signal.SIGINT)
        _, error = started.ended()
    assert time.monotonic() - begin < 20
    assert error.endswith("KeyboardInterrupt")
    assert error.count("Traceback") == 1
    assert complete(kafka_cluster, topic) == EASY


def test_a_handler_of_the_users_own_is_left_alone(kafka_cluster: Cluster, notes: Path, tmp_path: Path) -> None:
    topic = some_stuck(kafka_cluster, tmp_path / "never")
    with running(kafka_cluster, topic, "threads", own_terminate=True) as started:
        started.wait_until(done=18, running=2)
        started.popen.terminate()
        wait_for(lambda: "terminated" in started.lines)
        assert started.popen.poll() is None


def test_in_another_thread_than_the_main_one_nothing_is_installed(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path
) -> None:
    topic = some_stuck(kafka_cluster, tmp_path / "never")
    with running(kafka_cluster, topic, "threads", in_thread=True) as started:
        started.wait_until(done=18, running=2)
        assert "<Handlers.SIG_DFL: 0>" in started.lines
        started.popen.terminate()
        code, _ = started.ended()
        assert code == -signal.SIGTERM
