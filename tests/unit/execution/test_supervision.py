"""What a dispatch does for a supervisor, without Kafka: rows of what runs, and suspects that run alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.suspects import RecordId, RunningAttempt, Suspect
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.errors import BatchError, ProcessDiedError
from headway.execution.dispatch import Dispatch
from headway.execution.gates import supervision as supervising
from headway.execution.gates.supervision import Supervision
from headway.execution.jobs import Job, RecordAttempt
from headway.execution.running_table import RunningTable, make_table_file, read_table
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = TopicPartition("orders", partition=0)


class Letters:
    """Keeps dead letters, and lets a test say what became of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[RecordAttempt, BaseException, str]] = []

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None:
        self.sent.append((attempt, error, reason))


class World:
    """A dispatch of so many slots whose executor only keeps what it is to run."""

    def __init__(self, slots: int = 4, retries: Retries | None = None) -> None:
        self.descriptor = make_table_file()
        self.wake = Wakeup()
        self.engine = Engine[Any](Ordering.UNORDERED)
        self.engine.assign(ORDERS, OffsetMap(0))
        self.commits = 0
        self.supervision = Supervision(RunningTable(self.descriptor, slots), (), self._commit)
        retries = retries or Retries(fixed_backoff(0.0))
        self.dispatch = Dispatch(self.engine, retries, slots, self.wake, [self.supervision])
        self.letters = Letters()
        self.started: list[RecordAttempt] = []
        self.dispatch.begin(ExecutorStub(self._start), letters=self.letters, is_supervised=True)

    def call(self, job: Job) -> Any:
        self.supervision.fail_as_before(job)
        return job[0].offset

    def _commit(self) -> None:
        self.commits += 1

    def _start(self, jobs: Any) -> None:
        self.started += [attempt for [attempt] in jobs]

    def take(self, job: Job | None) -> None:
        if job:
            self._start([job])

    def come(self, *offsets: int) -> None:
        records = [record(offset) for offset in offsets]
        self.engine.receive(ORDERS, records, time.monotonic())
        self.dispatch.feed()

    def suspect(self, offset: int, attempts: int = 1, *, alone: bool = False, timestamp: int = 7) -> None:
        identity = RecordId("orders", 0, offset, timestamp)
        at = time.time() - 100
        how = "was ended by signal 9 (SIGKILL)"
        self.supervision.suspect([Suspect(identity, attempts, 0, attempts, alone, how, at, at)])

    def done(self, offset: int) -> None:
        self.take(self.dispatch.done(self._leave(offset)))
        self.dispatch.feed()

    def call_and_fail(self, offset: int) -> ProcessDiedError:
        """Run one whose call does not reach the handler."""
        attempt = self._leave(offset)
        with pytest.raises(ProcessDiedError) as raised:
            self.call([attempt])
        self.take(self.dispatch.complete((attempt,), raised.value))
        self.dispatch.feed()
        return raised.value

    def _leave(self, offset: int) -> RecordAttempt:
        [attempt] = [attempt for attempt in self.started if attempt.offset == offset]
        self.started.remove(attempt)
        return attempt

    @property
    def runs(self) -> list[int]:
        return sorted(attempt.offset for attempt in self.started)

    @property
    def noted(self) -> list[int]:
        return [attempt.record.offset for attempt in read_table(self.descriptor)]


def record(offset: int) -> Any:
    return SimpleNamespace(
        offset=offset, raw_key=None, kafka_topic="orders", partition=0, timestamp=7, topic_partition=ORDERS
    )


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    worlds = []

    def make(*args: Any, **options: Any) -> World:
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.wake.close()
        os.close(world.descriptor)


Make = Callable[..., World]


def test_what_runs_is_in_the_table_and_what_has_ended_is_not(make_world: Make) -> None:
    world = make_world(slots=2)
    world.come(0, 1, 2)
    assert world.noted == world.runs == [0, 1]
    world.done(0)
    assert world.noted == world.runs == [1, 2]
    world.done(1)
    world.done(2)
    assert world.noted == []


def attempt_at(offset: int) -> RecordAttempt:
    assignment: Assignment[ConsumerRecord] = Assignment(ORDERS, OffsetMap(0), 1)
    return Attempt(record(offset), offset, 100, None, assignment, 0.0, offset)


def run_until_killed() -> None:
    """Note five records, one more than there is room for, and die."""
    table = RunningTable(int(sys.argv[1]), 3)
    for offset in range(5):
        table.enter(attempt := attempt_at(offset))
        if offset == 0:
            table.leave(attempt)
    os.kill(os.getpid(), signal.SIGKILL)


def test_rows_outlive_a_process_that_is_killed() -> None:
    descriptor = make_table_file()
    program = "from tests.unit.execution.test_supervision import run_until_killed; run_until_killed()"
    command = [sys.executable, "-c", program, str(descriptor)]
    ended = subprocess.run(command, pass_fds=[descriptor], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_table(descriptor) == [RunningAttempt(RecordId("orders", 0, offset, 7), 1) for offset in (1, 2, 3)]
    os.close(descriptor)


def test_a_process_that_died_before_it_began_ran_nothing() -> None:
    descriptor = make_table_file()
    assert read_table(descriptor) == []
    os.close(descriptor)


def test_a_suspects_attempt_fails_without_a_call_and_the_next_runs_alone(make_world: Make) -> None:
    world = make_world()
    world.suspect(1)
    world.come(0, 1, 2)
    assert world.noted == [0, 2]  # nobody runs the suspect yet, so it would not be the cause
    error = world.call_and_fail(1)
    assert (error.alone, error.deaths) == (False, 1)
    world.come(3)
    assert world.runs == [0, 2]  # the suspect waits, and nothing else starts
    world.done(0)
    assert world.runs == [2]
    world.done(2)
    assert world.runs == world.noted == [1]
    [suspect] = world.started
    assert suspect.number == 2
    assert world.call([suspect]) == 1
    world.come(4, 5)
    assert world.runs == [1]
    world.done(1)
    assert world.runs == [3, 4, 5]
    assert (world.dispatch.metrics().done, world.commits) == (3, 1)


def test_one_that_has_run_alone_is_no_suspect_at_its_next_attempt(make_world: Make) -> None:
    world = make_world()
    world.suspect(0)
    world.come(0)
    world.call_and_fail(0)
    [attempt] = world.started
    world.started.clear()
    world.take(world.dispatch.complete((attempt,), ValueError()))
    world.come(1, 2)
    assert world.runs == [0, 1, 2]


def test_the_letter_of_one_that_kills_tells_when_it_first_did_and_is_made_again_without_another_death(
    make_world: Make,
) -> None:
    world = make_world(retries=Retries(fixed_backoff(0.0), max_attempts=3))
    world.suspect(0, attempts=3, alone=True)
    world.come(0, 1)
    world.call_and_fail(0)
    [(attempt, _, reason)] = world.letters.sent
    assert (attempt.number, reason) == (3, "attempt 3 of 3 failed")
    assert attempt.failure is not None
    assert attempt.failure.first_at == pytest.approx(time.monotonic() - 100, abs=5)
    assert world.runs == [1]

    world.letters.sent.clear()
    world.dispatch.not_stored(attempt, time.monotonic())  # Kafka refuses it
    world.dispatch.feed()
    [(attempt, _, reason)] = world.letters.sent
    assert (attempt.number, reason, world.runs) == (3, "attempt 3 of 3 failed", [1])
    assert world.commits == 0
    world.dispatch.stored(attempt)
    assert world.commits == 1


def test_a_suspect_is_known_by_its_time_too_as_topics_are_made_anew(make_world: Make) -> None:
    world = make_world()
    world.suspect(0, attempts=3, alone=True, timestamp=6)
    world.come(0, 1)
    assert world.runs == world.noted == [0, 1]
    assert [world.call([attempt]) for attempt in world.started] == [0, 1]


@pytest.mark.parametrize("ends", ["ending", "revoked", "late"])
def test_a_suspect_that_cannot_run_alone_keeps_nobody_waiting(
    make_world: Make, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.suspect(1)
    world.come(0, 1, 2)
    world.call_and_fail(1)
    assert world.runs == [0, 2]
    assert world.dispatch.metrics().running == 3
    if ends == "ending":
        world.dispatch.end()
    elif ends == "revoked":
        world.engine.revoke([ORDERS])
    else:
        monkeypatch.setattr(supervising, "PATIENCE", 0.0)
    world.come(3)
    assert world.dispatch.metrics().running == (3 if ends == "late" else 2)
    assert 1 not in world.runs or ends == "late"


def test_one_that_runs_alone_for_very_long_lets_others_start(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    world.suspect(0)
    world.come(0)
    world.call_and_fail(0)
    world.come(1)
    assert world.runs == [0]
    monkeypatch.setattr(supervising, "PATIENCE", 0.0)
    world.dispatch.feed()
    assert world.runs == [0, 1]


def test_a_paused_consumer_keeps_its_suspect_waiting(make_world: Make) -> None:
    world = make_world()
    world.suspect(1)
    world.come(0, 1)
    world.call_and_fail(1)
    world.dispatch.paused = True
    world.done(0)
    assert world.runs == []
    world.dispatch.paused = False
    world.dispatch.feed()
    assert world.runs == [1]


class BatchWorld(World):
    """The same, in batches of one lane, or of records that have none."""

    def __init__(self, size: int, slots: int = 1, ordering: Ordering = Ordering.PARTITION) -> None:
        super().__init__(slots, Retries(fixed_backoff(0.0), max_attempts=3))
        self.engine = Engine[Any](ordering)
        self.engine.assign(ORDERS, OffsetMap(0))
        retries = Retries(fixed_backoff(0.0), max_attempts=3)
        self.dispatch = Dispatch(self.engine, retries, slots, self.wake, [self.supervision])
        self.supervision.expect_batches(slots, size)
        self.jobs: list[Job] = []
        self.suspected = False  # True if a job may fail without a call, and so without a row
        self.dispatch.begin(
            ExecutorStub(self._start),
            letters=self.letters,
            is_supervised=True,
            batch_size=size,
        )
        self.calls: list[list[int]] = []

    def _start(self, jobs: Any) -> None:
        self.jobs += jobs

    def call(self, job: Job) -> list[int]:
        self.supervision.fail_as_before(job)
        return [attempt.offset for attempt in job]

    def run_next(self) -> None:
        """Run the first job that was started, unless its call fails as before."""
        job = self.jobs.pop(0)
        assert self.suspected or {attempt.offset for attempt in job} <= set(self.noted)
        try:
            self.calls.append(self.call(job))
        except (BatchError, ProcessDiedError) as error:
            errors = error.failures if isinstance(error, BatchError) else {0: error}
            self.take(self.dispatch.complete_each((), [(job[i], each) for i, each in errors.items()]))
        else:
            self.take(self.dispatch.complete_each([(attempt, ()) for attempt in job], ()))
        self.dispatch.feed()

    def run_all(self) -> list[list[int]]:
        """Run until nothing runs; returns the calls of the handler."""
        while self.jobs:
            self.run_next()
        return self.calls


def test_a_batch_has_a_row_for_each_of_its_records() -> None:
    world = BatchWorld(size=4)
    world.come(0, 1, 2, 3, 4)
    assert world.noted == [0, 1, 2, 3]
    world.run_next()
    assert world.noted == [4]


def test_the_suspects_of_a_batch_fail_without_the_others_and_then_run_alone() -> None:
    world = BatchWorld(size=8)
    world.suspected = True
    for offset in (2, 3):
        world.suspect(offset)
    world.come(*range(8))
    assert world.run_all() == [[0, 1], [2], [3], [4, 5, 6, 7]]
    assert world.letters.sent == []


@given(
    size=st.integers(1, 6),
    slots=st.integers(1, 3),
    ordering=st.sampled_from(Ordering),
    suspects=st.dictionaries(st.integers(0, 11), st.tuples(st.integers(1, 2), st.booleans())),
)
def test_whatever_is_suspect_each_record_is_called_for_once_and_suspects_alone(
    size: int, slots: int, ordering: Ordering, suspects: dict[int, tuple[int, bool]]
) -> None:
    world = BatchWorld(size, slots, ordering)
    world.suspected = bool(suspects)
    for offset, (attempts, alone) in suspects.items():
        world.suspect(offset, attempts, alone=alone)
    world.come(*range(12))
    calls = world.run_all()
    assert sorted(offset for call in calls for offset in call) == list(range(12))
    assert all(len(call) == 1 for call in calls if suspects.keys() & set(call))
    if ordering in (Ordering.KEY, Ordering.PARTITION):  # without a key nothing is in order in the others
        assert [offset for call in calls for offset in call] == list(range(12))
    assert world.noted == []
    world.wake.close()
    os.close(world.descriptor)


def test_an_interrupted_row_does_not_count() -> None:
    descriptor = make_table_file()
    RunningTable(descriptor, 1).enter(attempt_at(4))
    os.pwrite(descriptor, b"\0", 0)  # as while it is written
    assert read_table(descriptor) == []
    os.close(descriptor)
