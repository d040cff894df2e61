"""What the end of an attempt means for each gate: the table of docs/design/engine.md, and a test for each cell."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.suspects import died
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.errors import FatalError, RetriableError, RetryLater, TimeLimitError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.execution.gates.queue_times import QueueTimes
from headway.execution.gates.start_rate import StartRate
from headway.execution.jobs import RecordAttempt
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

ORDERS = TopicPartition("orders", partition=0)
MOST = 3  # attempts
BACKOFF = 60.0
TOOK = 2.0  # seconds of an attempt
WAITED = 5.0  # seconds before the first


class Store:
    """A store of dead letters and later retries that keeps them."""

    def __init__(self) -> None:
        self.kept: list[RecordAttempt] = []

    def send(self, attempt: RecordAttempt, *_: Any) -> None:
        self.kept.append(attempt)


class World:
    """A dispatch with each gate there is, and records of as many keys and tenants."""

    def __init__(self, records: int = 4) -> None:
        self.now, self.wake, self.running = 1000.0, Wakeup(), list[RecordAttempt]()
        self.engine = Engine[Any](Ordering.KEY, tenants={})
        self.rate, self.circuit = StartRate(200.0), CircuitGate(CircuitBreaker(least=2, failing=1.0, window=1000.0))
        gates = [self.circuit, self.rate, QueueTimes(WAITED - 1)]
        retries = Retries(fixed_backoff(BACKOFF), max_attempts=MOST)
        self.dispatch = Dispatch(self.engine, retries, 10, self.wake, gates)
        self.letters, self.schedules = Store(), Store()
        self.dispatch.begin(ExecutorStub(self._start), letters=self.letters, schedules=self.schedules)
        self.engine.assign(ORDERS, OffsetMap(0))
        come = [SimpleNamespace(offset=offset, raw_key=b"%d" % offset) for offset in range(records)]
        self.patched = patch("time.monotonic", lambda: self.now)
        self.patched.start()
        self.engine.receive(ORDERS, come, self.now, tenants=[str(number) for number in range(records)])
        self.now += WAITED
        self.tokens = self.rate.allowed(self.now)
        self.dispatch.feed()

    def _start(self, jobs: Any) -> None:
        self.running += [attempt for [attempt] in jobs]

    def close(self) -> None:
        self.patched.stop()
        self.wake.close()

    def end(self, offset: int, outcome: "Outcome") -> None:
        """Let an attempt that took some seconds end."""
        [attempt] = [attempt for attempt in self.running if attempt.offset == offset]
        self.running.remove(attempt)
        if following := outcome(self.dispatch, attempt):
            self._start([following])

    def next_attempt(self, offset: int) -> RecordAttempt | None:
        """The record's next attempt, which begins once its time has come; None if it is at its end."""
        self.now += BACKOFF + 1
        self.dispatch.feed()
        return next((attempt for attempt in self.running if attempt.offset == offset), None)


Outcome = Callable[[Dispatch, RecordAttempt], Any]


def raises(error: BaseException) -> Outcome:
    return lambda dispatch, attempt: dispatch.complete((attempt,), error)


def returns(dispatch: Dispatch, attempt: RecordAttempt) -> Any:
    return dispatch.complete((attempt,))


def is_given_back(dispatch: Dispatch, attempt: RecordAttempt) -> None:
    attempt.started = time.monotonic()
    dispatch.untried(attempt)


class Cells(NamedTuple):
    """A line of the table."""

    attempts: int | None  # used of `max_attempts`; None if the record is at its end here
    circuit: str
    tenant: float  # seconds


GOOD, BAD, NOTHING = "its key is well", "its key fails", "nothing"

TABLE: dict[str, tuple[Outcome, Cells]] = {
    "it returns": (returns, Cells(None, GOOD, TOOK)),
    "it raises": (raises(OSError()), Cells(1, BAD, TOOK)),
    "it raises RetriableError": (raises(RetriableError()), Cells(1, BAD, TOOK)),
    "it exceeds the time limit": (raises(TimeLimitError("late")), Cells(1, BAD, TOOK)),
    "it is untried": (raises(RetriableError(untried=True)), Cells(0, NOTHING, TOOK)),
    "it raises FatalError": (raises(FatalError()), Cells(None, NOTHING, TOOK)),
    "it raises RetryLater": (raises(RetryLater(60)), Cells(None, NOTHING, TOOK)),
    "its process dies with it alone": (raises(died("ended", 1, alone=True)), Cells(1, NOTHING, TOOK)),
    "its process dies with others in it": (raises(died("ended", 1, alone=False)), Cells(1, NOTHING, TOOK)),
    "it has not begun": (is_given_back, Cells(0, NOTHING, 0.0)),
}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.mark.parametrize(("outcome", "cells"), TABLE.values(), ids=TABLE)
class TestCells:
    """The cells of each line."""

    def test_attempts(self, world: World, outcome: Outcome, cells: Cells) -> None:
        world.end(0, outcome)
        following = world.next_attempt(0)
        assert (None if following is None else following.number - following.untried - 1) == cells.attempts

    def test_circuit_counts_failures(self, world: World, outcome: Outcome, cells: Cells) -> None:
        for offset in range(2):
            world.end(offset, outcome)
        assert world.circuit.is_open == (cells.circuit == BAD)

    def test_circuit_counts_successes(self, world: World, outcome: Outcome, cells: Cells) -> None:
        world.end(0, outcome)
        for offset in (1, 2):
            world.end(offset, raises(OSError()))
        assert world.circuit.is_open == (cells.circuit != GOOD)

    def test_a_probe_learns_the_same(self, world: World, outcome: Outcome, cells: Cells) -> None:
        for offset in range(4):
            world.end(offset, raises(OSError()))
        world.now += BACKOFF + 1
        for _ in range(3):  # as many good ones close it
            world.now += 100
            world.dispatch.feed()
            for attempt in world.running[:1]:
                world.end(attempt.offset, outcome)
        assert world.circuit.is_open == (cells.circuit != GOOD)

    def test_tenant(self, world: World, outcome: Outcome, cells: Cells) -> None:
        world.now += TOOK
        world.end(0, outcome)
        for store in (world.letters, world.schedules):  # the record holds its slot until then
            for attempt in store.kept:
                world.dispatch.stored(attempt)
        assert world.dispatch.metrics().busiest_tenants["0"] == pytest.approx(cells.tenant, abs=1e-5)

    def test_rate(self, world: World, outcome: Outcome, cells: Cells) -> None:
        """Each start is charged, and no end gives it back; what has not begun starts, and is charged, again."""
        assert world.rate.allowed(world.now) == world.tokens - 4
        world.end(0, outcome)
        assert world.rate.allowed(world.now) == world.tokens - (5 if outcome is is_given_back else 4)

    def test_queue_time(self, world: World, outcome: Outcome, cells: Cells) -> None:
        """The wait before the first start counts once, whatever follows."""
        assert world.dispatch.metrics().late == 4
        world.end(0, outcome)
        world.next_attempt(0)
        assert world.dispatch.metrics().late == 4

    def test_expiry(self, world: World, outcome: Outcome, cells: Cells) -> None:
        """A record that expires before its next attempt waits for that no longer; what has not begun starts at once."""
        world.dispatch.add(ExpiryGate())
        [attempt] = [attempt for attempt in world.running if attempt.offset == 0]
        attempt.not_after = world.now + 1.0
        world.end(0, outcome)
        world.now += 1.5
        world.dispatch.feed()
        assert world.dispatch.metrics().expired == (cells.attempts is not None and outcome is not is_given_back)


def test_retry_later_counts_for_no_circuit_at_its_last_attempt_either(world: World) -> None:
    for offset in range(2):
        for _ in range(MOST - 1):
            world.end(offset, raises(died("ended", 1, alone=False)))
            assert world.next_attempt(offset)
        world.end(offset, raises(RetryLater(60)))
    assert not world.circuit.is_open
    assert len(world.letters.kept) == 2


def test_deaths_end_a_record_though_the_circuit_is_open(world: World) -> None:
    for offset in (1, 2):
        world.end(offset, raises(OSError()))
    assert world.circuit.is_open
    for deaths in range(1, MOST + 1):
        world.end(0, raises(died("ended", deaths, alone=True)))
        if deaths < MOST:
            world.running[:] = [attempt for attempt in world.running if attempt.offset == 0]
            while not (following := world.next_attempt(0)):
                for attempt in list(world.running):
                    world.end(attempt.offset, raises(OSError()))
            assert following.number - following.untried == deaths + 1
    assert [attempt.offset for attempt in world.letters.kept] == [0]
