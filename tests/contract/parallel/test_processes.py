"""Handlers in processes of their own, on a real Apache Kafka."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway import Batches, ConsumerRecord, Context, Ordering, ParallelConsumer, Retries
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError
from tests.contract.conftest import Cluster
from tests.contract.parallel import process_handlers as handlers  # by a name that processes can import too
from tests.contract.parallel.members import Member, committed, consumer, plain_topic, read, send, settings_of, wait_for
from tests.contract.parallel.programs import Program, program

pytestmark = pytest.mark.kafka

PROCESSES: dict[str, Any] = {"executor": "process", "processes": 2, "retries": Retries(fixed_backoff(0.05))}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(handlers.NOTES, str(path))
    yield path
    wait_for(lambda: not alive([call.process for call in handlers.calls(path)]))


def alive(processes: list[int]) -> list[int]:
    return [process for process in set(processes) - {os.getpid()} if _is_alive(process)]


def _is_alive(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until_done(parallel: ParallelConsumer, count: int, run: Callable[[], Any]) -> None:
    """Stop the run when so many records are done; raises what the run raised."""
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.01):
            if parallel.metrics().done >= count:
                parallel.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        run()
    finally:
        ended.set()
        stopper.join()


def handle_all(cluster: Cluster, values: list[str], path: Path, options: dict[str, Any]) -> list[handlers.Call]:
    """What was noted when all of these, each with a key of its own, are done."""
    topic = plain_topic(cluster)
    send(cluster, topic, [(f"key-{i}", value) for i, value in enumerate(values)], partition=0)
    parallel = consumer(cluster, topic, PROCESSES | options)
    until_done(parallel, len(values), lambda: parallel.run(handlers.act))
    assert committed(cluster, topic) == {0: (len(values), b"")}
    return handlers.calls(path)


def attempts_of(calls: list[handlers.Call]) -> list[int]:
    """Of each record in order, at which attempt it was last handled."""
    return [attempt for _, attempt in sorted({call.offset: call.attempt for call in calls}.items())]


# What handlers do


def test_every_record_is_handled_once_in_a_process_and_in_the_order_of_its_key(
    kafka_cluster: Cluster, notes: Path
) -> None:
    topic, count = plain_topic(kafka_cluster), 1000
    send(kafka_cluster, topic, [(f"key-{i % 37}", str(i)) for i in range(count)])
    parallel = consumer(kafka_cluster, topic, PROCESSES | {"max_concurrency": 50})
    until_done(parallel, count, lambda: parallel.run(handlers.note_beside_another))
    calls = handlers.calls(notes)
    assert len({(call.partition, call.offset) for call in calls}) == len(calls) == count
    lanes: dict[Any, list[int]] = defaultdict(list)
    for call in calls:
        lanes[call.key].append(call.offset)
    assert all(offsets == sorted(offsets) for offsets in lanes.values())
    assert os.getpid() not in {call.process for call in calls}
    assert len({call.process for call in calls}) == 2
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


@pytest.mark.slow
def test_levels_reach_the_handler(kafka_cluster: Cluster, notes: Path) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for i in range(30):
            producer.send(topic, str(i), key=str(i), level=i % 3)
    parallel = consumer(kafka_cluster, topic, PROCESSES, levels=3)
    until_done(parallel, 30, lambda: parallel.run(handlers.note))
    assert sorted((int(call.value) % 3, call.level) for call in handlers.calls(notes)) == [
        (level, level) for level in range(3) for _ in range(10)
    ]


def test_results_arrive_and_deserialisers_run_in_the_process(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(50)])
    parallel = consumer(kafka_cluster, topic, PROCESSES, **{"value.deserializer": handlers.number_and_process})
    found = []
    for result in parallel.results(handlers.value_and_process):
        found.append(result.value)
        if len(found) == 50:
            break
    assert sorted(number for (number, _), _ in found) == list(range(50))
    assert all(read_in == handled_in != os.getpid() for (_, read_in), handled_in in found)


@pytest.mark.slow
def test_outputs_arrive(kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, other = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    monkeypatch.setenv("HEADWAY_TEST_TOPIC", other)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(50)])
    parallel = consumer(kafka_cluster, topic, PROCESSES)
    until_done(parallel, 50, lambda: parallel.run_and_produce(handlers.doubled))
    assert sorted(message.value() or b"" for message in read(kafka_cluster, other, 50)) == sorted(
        str(i).encode() * 2 for i in range(50)
    )


@pytest.mark.slow
def test_a_batch_that_names_its_failures_has_the_others_done(kafka_cluster: Cluster, notes: Path) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", value) for value in ("a", "fail", "b", "fail", "c")], partition=0)
    parallel = consumer(kafka_cluster, topic, PROCESSES)
    until_done(parallel, 5, lambda: parallel.run(handlers.note_batch, batches=Batches(5, linger=0.5)))
    calls = handlers.calls(notes)
    assert [call.offset for call in calls] == [0, 1, 2, 3, 4, 1, 3]
    assert "UnpicklableError: no" in calls[-1].last_error


# Failures


@pytest.mark.slow
def test_whatever_a_handler_raises_is_a_failed_attempt_with_a_readable_error(
    kafka_cluster: Cluster, notes: Path
) -> None:
    values = ["fail no luck", "unpicklable no way", "leave early", "nothing"]
    calls = handle_all(kafka_cluster, values, notes, {})
    assert attempts_of(calls) == [2, 2, 2, 1]
    assert {call.value: call.last_error for call in calls if call.attempt == 2} == {
        "fail no luck": "ValueError('no luck')",
        "unpicklable no way": "HandlerProcessError('UnpicklableError: no way')",
        "leave early": "SystemExit('early')",
    }
    assert len({call.process for call in calls}) <= 2  # none had to be replaced


def test_a_result_that_cannot_be_sent_is_a_failed_attempt(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "v")])
    parallel = consumer(kafka_cluster, topic, PROCESSES)
    found = []
    for result in parallel.results(handlers.give_a_lambda):
        found.append(result.value)
        break
    assert found == ["sent"]
    assert parallel.metrics().failed == 1


@pytest.mark.slow
def test_a_failure_for_good_ends_in_the_dead_letter_topic(kafka_cluster: Cluster, notes: Path) -> None:
    dead = plain_topic(kafka_cluster)
    handle_all(kafka_cluster, ["fatal no use", "nothing"], notes, {"dead_letter_topic": dead})
    [letter] = read(kafka_cluster, dead, 1)
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert letter.value() == b"fatal no use"
    assert headers["headway.error.message"] == b"no use"


DEATHS = [("exit 3", "exit code 3"), ("exit 0", "exit code 0"), ("kill", "signal 9 (SIGKILL)")]


@pytest.mark.quick("kill-signal 9 (SIGKILL)")
@pytest.mark.parametrize(("death", "how"), DEATHS)
def test_where_a_process_dies_only_the_record_that_it_was_at_has_failed(
    kafka_cluster: Cluster, notes: Path, death: str, how: str
) -> None:
    values = ["nothing"] * 300
    values[100] = values[200] = death
    calls = handle_all(kafka_cluster, values, notes, {"max_concurrency": 40})
    assert [offset for offset, attempt in enumerate(attempts_of(calls)) if attempt != 1] == [100, 200]
    [error] = {call.last_error for call in calls if call.attempt == 2}
    assert error.startswith("ProcessDiedError('The process of the handler ")
    assert error.endswith(f"{how} while it was handling this record.')")
    assert 3 <= len({call.process for call in calls}) <= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retries", "reason"), [(2, "attempt 2 of 2 failed"), (None, "3 processes died while handling it")]
)
def test_a_record_that_kills_whenever_it_runs_becomes_a_dead_letter_that_says_how(
    kafka_cluster: Cluster, notes: Path, retries: int | None, reason: str
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(str(i), "poison" if i == 3 else "nothing") for i in range(10)], partition=0)
    options = {"retries": Retries(fixed_backoff(0.01), max_attempts=retries), "dead_letter_topic": dead}
    member = Member(consumer(kafka_cluster, topic, PROCESSES | options), handlers.act_always)
    [letter] = read(kafka_cluster, dead, 1)
    wait_for(lambda: member.consumer.metrics().done == 10)
    member.stop()
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert letter.value() == b"poison"
    assert headers["headway.error.reason"] == reason.encode()
    assert b"was ended by signal 9 (SIGKILL)" in headers["headway.error.message"]


@pytest.mark.slow
@pytest.mark.parametrize("ordering", [pytest.param(Ordering.KEY, marks=pytest.mark.slow), Ordering.UNORDERED])
def test_those_of_a_batch_whose_process_died_run_one_by_one_and_only_the_one_that_kills_is_a_dead_letter(
    kafka_cluster: Cluster, notes: Path, ordering: Ordering
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "poison" if i == 3 else "nothing") for i in range(8)], partition=0)
    retries = Retries(fixed_backoff(0.01), max_attempts=1)
    options = PROCESSES | {"ordering": ordering, "retries": retries, "dead_letter_topic": dead}
    parallel = consumer(kafka_cluster, topic, options)
    running = threading.Thread(target=lambda: parallel.run(handlers.act_always_in_batches, batches=Batches(8, 0.5)))
    running.start()
    [letter] = read(kafka_cluster, dead, 1)
    wait_for(lambda: parallel.metrics().done == 8)
    parallel.close()
    running.join(30)
    assert letter.value() == b"poison"
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert headers["headway.error.message"].endswith(
        b"was ended by signal 9 (SIGKILL) while it was handling this record."
    )
    assert 1 not in attempts_of(handlers.calls(notes))
    assert parallel.metrics().dead_letters == 1


@pytest.mark.slow
def test_the_death_of_a_process_is_seen_while_what_it_forked_lives(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    try:
        for fork in ("fork", "fork_unseen"):
            calls = handle_all(kafka_cluster, [f"{fork} {gate}", *["nothing"] * 20], notes, {})
            assert attempts_of(calls) == [2, *[1] * 20]
            notes.write_text("")
    finally:
        os.close(os.open(gate, os.O_RDWR))  # ends what was forked


def test_what_a_handler_forked_and_let_return_takes_no_part(kafka_cluster: Cluster, notes: Path) -> None:
    calls = handle_all(kafka_cluster, ["fork_and_return", *["nothing"] * 50], notes, {"max_concurrency": 40})
    assert attempts_of(calls) == [1] * 51


def test_a_call_that_takes_too_long_ends_with_its_process_and_the_pool_goes_on(
    kafka_cluster: Cluster, notes: Path
) -> None:
    values = ["sleep 30", *["nothing"] * 50]
    begin = time.monotonic()
    calls = handle_all(kafka_cluster, values, notes, {"time_limit": 0.5})
    assert time.monotonic() - begin < 20
    assert attempts_of(calls) == [2, *[1] * 50]
    assert {call.last_error for call in calls if call.attempt == 2} == {
        "TimeLimitError('The handler did not end within its time limit of 0.5 s.')"
    }
    first, second = (call for call in calls if call.offset == 0)
    assert first.process != second.process


@pytest.mark.slow
def test_what_takes_long_is_not_put_behind_another_while_a_process_is_idle(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path
) -> None:
    topic, count = plain_topic(kafka_cluster), 2000
    gates = [tmp_path / f"gate-{number}" for number in range(6)]
    values = ["nothing"] * count + [f"await {gate}" for gate in gates]  # after quick ones, which go in large chunks
    send(kafka_cluster, topic, [(f"key-{i}", value) for i, value in enumerate(values)], partition=0)
    member = Member(consumer(kafka_cluster, topic, PROCESSES | {"max_concurrency": 64}), handlers.act)

    def begun() -> list[str]:
        return [call.value for call in handlers.calls(notes) if call.offset >= count]

    try:
        for number in range(2, len(gates) + 1):  # the first keeps its process to the end: the other begins all others
            wait_for(lambda number=number: len(begun()) == number)  # type: ignore[misc]
            if number < len(gates):
                Path(begun()[-1].removeprefix("await ")).touch()
    finally:
        for gate in gates:
            gate.touch()
        member.stop()
    assert committed(kafka_cluster, topic) == {0: (len(values), b"")}
    assert attempts_of(handlers.calls(notes)) == [1] * len(values)


@pytest.mark.slow
def test_records_behind_one_that_does_not_end_are_done_and_count(
    kafka_cluster: Cluster, notes: Path, tmp_path: Path
) -> None:
    topic, gate, count = plain_topic(kafka_cluster), tmp_path / "gate", 2000
    values = [f"await {gate}" if i == count // 2 else "nothing" for i in range(count)]
    send(kafka_cluster, topic, [(f"key-{i}", value) for i, value in enumerate(values)], partition=0)
    parallel = consumer(kafka_cluster, topic, PROCESSES | {"max_concurrency": 64})
    member = Member(parallel, handlers.act)
    try:
        wait_for(lambda: parallel.metrics().done == count - 1)
        assert parallel.metrics().running == 1
    finally:
        gate.touch()
        member.stop()
    assert committed(kafka_cluster, topic) == {0: (count, b"")}
    assert len(handlers.calls(notes)) == count


# More than a pipe takes unread


@pytest.mark.quick("value-options0")
@pytest.mark.parametrize(
    ("handler", "options"), [(handlers.value, {}), (handlers.stand_still_once, {"time_limit": 0.5})]
)
def test_large_records_and_results_hold_up_neither_each_other_nor_the_time_limit(
    kafka_cluster: Cluster, handler: Any, options: dict[str, Any]
) -> None:
    topic, count, padding = plain_topic(kafka_cluster), 400, " " * 30_000
    values = ["stand still" if i == count // 2 else "go on" for i in range(count)]
    send(kafka_cluster, topic, [(f"key-{i}", value + padding) for i, value in enumerate(values)], partition=0)
    parallel = consumer(kafka_cluster, topic, PROCESSES | {"processes": 1, "max_concurrency": 80} | options)
    until_done(parallel, count, lambda: parallel.run(handler))
    assert parallel.metrics().failed == len(options)
    assert committed(kafka_cluster, topic) == {0: (count, b"")}


# Handlers that cannot be had


def test_a_handler_that_cannot_be_imported_is_refused_before_anything_starts(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)

    def nested(record: ConsumerRecord, context: Context) -> None: ...

    for handler in (nested, lambda record, context: None):
        with pytest.raises(ConfigError, match=r"must be importable functions: .*Define them at the top level of"):
            consumer(kafka_cluster, topic, PROCESSES).run(handler)
    with pytest.raises(ConfigError, match="the deserialisers must be importable"):
        consumer(kafka_cluster, topic, PROCESSES, **{"value.deserializer": lambda raw: raw}).run(handlers.note)


def test_a_coroutine_function_is_refused(kafka_cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="executor='process' cannot run an async def"):
        consumer(kafka_cluster, plain_topic(kafka_cluster), PROCESSES).run(handlers.act_async)


WITHOUT_A_MODULE = """
import sys
from headway import ParallelConsumer
def handle(record, context): pass
with ParallelConsumer({"bootstrap.servers": sys.argv[1], "group.id": "g"}, executor="process") as consumer:
    consumer.subscribe(sys.argv[2])
    consumer.run(handle)
"""


@pytest.mark.slow
def test_a_handler_that_its_process_cannot_load_ends_the_run_with_a_sentence(kafka_cluster: Cluster) -> None:
    command = [sys.executable, "-c", WITHOUT_A_MODULE, kafka_cluster.bootstrap_servers, plain_topic(kafka_cluster)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "HandlerProcessError: A process cannot load the handler or a deserialiser: AttributeError" in ended.stderr
    assert ended.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_a_program_without_a_guard_ends_with_a_sentence(kafka_cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text(WITHOUT_A_MODULE)
    command = [sys.executable, str(path), kafka_cluster.bootstrap_servers, plain_topic(kafka_cluster)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert 'must be guarded by `if __name__ == "__main__":`' in ended.stderr


# The end


@pytest.mark.slow
def test_stopping_waits_for_what_runs(kafka_cluster: Cluster, notes: Path, tmp_path: Path) -> None:
    topic, gate = plain_topic(kafka_cluster), tmp_path / "gate"
    send(kafka_cluster, topic, [(str(i), f"await {gate}") for i in range(10)], partition=0)
    member = Member(consumer(kafka_cluster, topic, PROCESSES | {"max_concurrency": 2}), handlers.act)
    wait_for(lambda: len(handlers.calls(notes)) == 2)
    member.consumer.stop()  # nothing starts from here on
    gate.touch()
    member.stop()
    assert len(handlers.calls(notes)) == 2
    assert committed(kafka_cluster, topic) == {0: (2, b"")}


def test_stopping_at_once_is_nobodys_failure(
    kafka_cluster: Cluster, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(str(i), "sleep 60") for i in range(10)], partition=0)
    options = PROCESSES | {"retries": Retries(max_attempts=1), "dead_letter_topic": dead}
    member = Member(consumer(kafka_cluster, topic, options), handlers.act)
    wait_for(lambda: len(handlers.calls(notes)) == 2)
    begin = time.monotonic()
    member.stop(drain=False)
    assert time.monotonic() - begin < 30
    assert committed(kafka_cluster, topic) == {}
    assert member.consumer.metrics().failed == 0
    assert "attempt" not in caplog.text
    assert "dead letter" not in caplog.text


@pytest.mark.slow
def test_no_process_thread_or_descriptor_is_left(kafka_cluster: Cluster, notes: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

    def once() -> None:
        handle_all(kafka_cluster, ["nothing"] * 20 + ["kill"] * 3, notes, {})

    once()  # what multiprocessing keeps for the life of a process is there from now on
    before, threads = descriptors(), threading.active_count()
    for _ in range(2):
        once()
    wait_for(lambda: threading.active_count() <= threads)
    wait_for(lambda: descriptors() <= before)
    assert not [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


@pytest.fixture
def running(kafka_cluster: Cluster, notes: Path) -> Iterator[Program]:
    """A program whose handlers take for ever, and the processes of which it consists."""
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(str(i), "sleep 600") for i in range(10)])
    config = kafka_cluster.config(settings_of(topic))
    with program(config, {"executor": "process", "processes": 3, "max_concurrency": 2}, topic, "act") as started:
        wait_for(lambda: len(handlers.calls(notes)) == 2)
        yield started


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it(running: Program) -> None:
    family = [child.pid for child in psutil.Process(running.popen.pid).children(recursive=True)]
    assert len(family) >= 3
    running.popen.kill()
    running.ended()
    wait_for(lambda: not alive(family))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_all_at_once_and_no_child_complains(running: Program, times: int) -> None:
    family = [child.pid for child in psutil.Process(running.popen.pid).children(recursive=True)]
    begin = time.monotonic()
    for _ in range(times):
        for process in (*family, running.popen.pid):  # as a terminal does
            with contextlib.suppress(ProcessLookupError):  # it may have ended at the first one
                os.kill(process, signal.SIGINT)
        time.sleep(0.05 * (times - 1))  # a person presses it again
    _, error = running.ended()
    assert time.monotonic() - begin < 20  # the handlers take ten minutes
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert "SpawnProcess" not in error
    assert times > 1 or error.count("Traceback") == 1
    wait_for(lambda: not alive(family))


def test_what_a_handler_starts_can_be_ended(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(None, "v")])
    with consumer(kafka_cluster, topic, PROCESSES) as parallel:
        assert next(iter(parallel.results(handlers.end_a_child))).value == -signal.SIGTERM
