"""Records that keep failing take their part of the slots from healthy ones, and no more. In simulated time."""

from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest

from headway.core.engine.attempt import Attempt, FailedAttempts
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import make_slots
from headway.core.levels.policies import PolicyName
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Again
from headway.records.record_types import TopicPartition

DELAY = 1.0


@dataclass(eq=False)
class Record:
    offset: int
    raw_key: bytes
    fails: bool


@dataclass
class Worker:
    """An engine, and slots whose handlers each take a fifth of a second."""

    engine: Engine[Record]
    slots: int
    takes: float = 0.2
    asks_for: int = 1000
    now: float = 0.0
    running: list[tuple[float, int, Attempt[Record]]] = field(default_factory=list)
    done: list[float] = field(default_factory=list)  # when each healthy record was done
    attempts: int = 0

    def usable_slots(self) -> int:
        return self.slots

    def run(self, until: float) -> None:
        while self.now < until:
            while attempts := self.engine.take(min(self.asks_for, self.slots - len(self.running)), self.now):
                for attempt in attempts:
                    self.attempts += 1
                    heappush(self.running, (self.now + self.takes, self.attempts, attempt))
            wake = self.engine.next_wake()
            self.now = min([at for at in (wake, self.running[0][0] if self.running else None, until) if at is not None])
            while self.running and self.running[0][0] <= self.now:
                self.report(heappop(self.running)[2])

    def report(self, attempt: Attempt[Record]) -> None:
        if attempt.record.fails:
            error = ValueError()
            self.engine.fail(attempt, error, Again(self.now + DELAY), self.now)
        else:
            self.engine.finish(attempt, self.now)
            self.done.append(self.now)


def records(failing: int, healthy: int) -> list[Record]:
    return [Record(number, b"%d" % number, number < failing) for number in range(failing + healthy)]


@pytest.mark.parametrize("ordering", [Ordering.KEY, Ordering.UNORDERED])
def test_healthy_records_lose_no_more_than_the_part_of_the_slots_that_is_for_retries(ordering: Ordering) -> None:
    place = TopicPartition("orders", partition=0)
    engine: Engine[Record] = Engine(ordering)
    engine.assign(place, OffsetMap(0))
    engine.receive(place, records(200, 200), 0.0)
    worker = Worker(engine, slots=8)
    worker.run(400 * worker.takes / (worker.slots * 0.75) + 1)  # the first attempt of each
    assert len(worker.done) == 200


@pytest.mark.parametrize("policy", ["fair", "strict", "capacity_burst"])
def test_a_level_of_failing_records_leaves_room_for_healthy_ones_of_another(policy: PolicyName) -> None:
    high, low = TopicPartition("orders", partition=0, level=1), TopicPartition("orders", partition=0, level=0)
    slots = make_slots(policy, None, 2, 8, max_wait=1000.0)
    engine: Engine[Record] = Engine(Ordering.KEY, levels=2, slots=slots)
    for place in (high, low):
        engine.assign(place, OffsetMap(0))
    engine.receive(high, records(200, 0), 0.0)
    worker = Worker(engine, slots=8)
    worker.run(10.0)
    assert not worker.done
    engine.receive(low, records(0, 60), 10.0)
    worker.run(16.0)
    assert len(worker.done) == 60


def test_records_that_fail_are_tried_in_all_slots_while_no_other_waits() -> None:
    place = TopicPartition("orders", partition=0)
    engine: Engine[Record] = Engine(Ordering.KEY)
    engine.assign(place, OffsetMap(0))
    engine.receive(place, records(200, 0), 0.0)
    worker = Worker(engine, slots=8)
    worker.run(20.0)
    assert worker.attempts >= 20 * 8 / worker.takes * 0.95


def test_failing_records_make_way_for_more_of_the_log() -> None:
    """1,500 failing of 10,000 with 16 slots, 0.1 s of back-off: the others were never all fetched."""
    place = TopicPartition("orders", partition=0)
    engine: Engine[Record] = Engine(Ordering.UNORDERED, buffer=1000)
    engine.assign(place, OffsetMap(0))
    log = [Record(number, b"", number % 20 < 3) for number in range(10_000)]
    worker, position = Worker(engine, slots=16, takes=0.01), 0
    while len(worker.done) < 8_500 and worker.now < 20:
        [demand] = engine.demand()
        if batch := log[position : position + demand]:
            engine.receive(place, batch, worker.now)
            position += len(batch)
        worker.run(worker.now + 0.05)
    # First attempts of 10,000 records in three quarters of 16 slots.
    assert worker.now <= 10_000 * 0.01 / 12 + 0.5


@pytest.mark.parametrize("counts", [True, False], ids=["a slot at a time", "all slots at a time"])
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_healthy_records_have_most_of_few_slots_too(slots: int, counts: bool) -> None:
    place = TopicPartition("orders", partition=0)
    engine: Engine[Record] = Engine(Ordering.KEY)
    engine.assign(place, OffsetMap(0))
    engine.receive(place, records(50, 0), 0.0)
    worker = Worker(engine, slots=slots, asks_for=1 if counts else slots)
    if counts:
        engine.count_slots(worker)
    worker.run(20.0)  # more attempts are due by now than can be made
    engine.receive(place, [Record(50 + number, b"%d" % (50 + number), False) for number in range(60)], 20.0)
    worker.run(20.0 + 60 * worker.takes / (slots * 0.75) + 1)
    assert len(worker.done) == 60


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8, 20])
def test_records_that_fail_have_their_share_while_healthy_ones_wait(slots: int) -> None:
    place = TopicPartition("orders", partition=0)
    engine: Engine[Record] = Engine(Ordering.KEY)
    engine.assign(place, OffsetMap(0))
    engine.receive(place, records(200, 0), 0.0)
    worker = Worker(engine, slots=slots)
    worker.run(60.0)
    attempts = worker.attempts
    engine.receive(place, [Record(200 + number, b"%d" % number, False) for number in range(4000)], 60.0)
    worker.run(90.0)
    retries = worker.attempts - attempts - len(worker.done)
    assert retries == pytest.approx(0.25 * slots * 30 / worker.takes, rel=0.05, abs=slots + 1)


def test_a_failure_that_is_noted_while_a_record_runs_gives_retries_no_more_slots() -> None:
    place = TopicPartition("orders", partition=0)
    engine: Engine[Record] = Engine(Ordering.KEY)
    engine.assign(place, OffsetMap(0))
    engine.receive(place, records(0, 100), 0.0)
    for attempt in engine.take(100, 0.0):
        attempt.failure = FailedAttempts(
            ValueError(), 0.0, 0.0, 1, 0, ValueError()
        )  # as that of a process which it ended
        engine.finish(attempt, 0.0)
    engine.receive(place, [Record(100 + n, b"%d" % n, n < 200) for n in range(400)], 0.0)
    worker = Worker(engine, slots=8)
    worker.run(400 * worker.takes / (worker.slots * 0.75) + 1)
    assert len(worker.done) == 200
