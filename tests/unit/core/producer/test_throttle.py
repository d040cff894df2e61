"""Levels of a producer that a broker's quota throttles: a broker that counts as Kafka does, without a network."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import pytest

from headway.core.producer.accumulator import Accumulator
from headway.core.producer.turn_policies import FairTurns, StrictTurns, TurnPolicy, Turns

QUOTA = 100_000  # bytes a second
STEP = 0.01
WINDOW = 10.0
IN_FLIGHT = 5
ON_THE_WIRE = 1_200  # so levels 1 and 2 use four fifths of the quota


@dataclass(eq=False, slots=True)
class Record:
    size: int = 1_400  # with what the accumulator counts for its objects
    since: float = 0.0
    level: int = 0
    queue: Any = field(default=None, repr=False)


class Broker:
    """Counts as Kafka does: by second, for ten seconds, and while that is above the quota it reads nothing for a while.

    Five requests are on their way at the most, as librdkafka sends them; what comes meanwhile for a partition is one
    request later.
    """

    def __init__(self, quota: float) -> None:
        self.quota = quota
        self.queued: deque[list[Record]] = deque()
        self.silent: Any = None  # a queue whose requests are never answered
        self.muted_until = 0.0
        self.pauses: list[float] = []
        self._requests: dict[Any, list[Record]] = {}
        self._line: deque[list[Record]] = deque()
        self._read: deque[list[float]] = deque()  # the second, and the bytes

    def turn(self, now: float) -> list[Record]:
        while self.queued:
            batch = self.queued.popleft()
            if batch[0].queue is not self.silent:
                self._requests.setdefault(batch[0].queue, []).extend(batch)
        records: list[Record] = []
        while True:
            while len(self._line) < IN_FLIGHT and self._requests:
                self._line.append(self._requests.pop(next(iter(self._requests))))
            if not self._line or now < self.muted_until:
                return records
            request = self._line.popleft()
            self._count(len(request) * ON_THE_WIRE, now)
            records += request

    def _count(self, size: float, now: float) -> None:
        if not self._read or now >= self._read[-1][0] + 1:
            self._read.append([float(int(now)), 0.0])
        self._read[-1][1] += size
        while self._read[0][0] < now - WINDOW - 1:
            self._read.popleft()
        window = max(WINDOW, now - self._read[0][0])
        over = sum(read for _, read in self._read) / window - self.quota
        if over > 0:
            self.pauses.append(over / self.quota * window)
            self.muted_until = now + self.pauses[-1]


class Producer:
    """Drives an accumulator as the sender does, with one topic of three levels and two partitions."""

    def __init__(self, quota: float, turns: TurnPolicy | None = None) -> None:
        self.accumulator: Accumulator[Record] = Accumulator(3, turns or FairTurns([1, 2, 4]))
        self.topics = [self.accumulator.topic(f"work-{level}", level) for level in range(3)]
        for topic in self.topics:
            self.accumulator.learn(topic, 2, range(2))
        self.broker = Broker(quota)
        self.sent = 0
        self.waited: list[list[float]] = [[], [], []]

    def send(self, level: int, now: float) -> None:
        self.sent += 1
        queue = self.topics[level].queue(self.sent // 8 % 2)
        record = Record(since=now, level=level, queue=queue)
        if queue.credit >= record.size or self.accumulator.admit(queue, record.size, now):
            queue.credit -= record.size
            self.broker.queued.append([record])
        else:
            assert self.accumulator.put(queue, record)

    def turn(self, now: float) -> None:
        for batch in self.accumulator.drain(512 * 1024, now):
            self.broker.queued.append(batch.records)
        pauses = len(self.broker.pauses)
        for record in self.broker.turn(now):
            self.waited[record.level].append(now - record.since)
            if not record.queue.returned:
                record.queue.reported.append(record.queue)
            record.queue.returned += record.size
        for pause in self.broker.pauses[pauses:]:
            self.accumulator.throttled(pause, now)
        self.accumulator.settle(now)


def run(producer: Producer, begin: float, end: float, level_0: int = 6) -> None:
    """Send 35 records a second each to levels 1 and 2, and so many times more to level 0."""
    steps = range(round(begin / STEP), round(end / STEP))
    for step in steps:
        if step % 3 == 0:
            for level in [0] * level_0 + [1, 2]:
                producer.send(level, step * STEP)
        producer.turn(step * STEP)


def test_levels_that_fit_into_a_quota_do_not_wait_behind_a_flood() -> None:
    producer = Producer(QUOTA)
    run(producer, 0, 60)
    flood, *fitting = producer.waited
    assert all(median(waited) < 2 for waited in fitting)
    assert median(flood) > 5
    assert sum(map(len, producer.waited)) * ON_THE_WIRE > 0.9 * 60 * QUOTA


def test_under_a_quota_the_highest_level_still_goes_first_where_turns_are_strict() -> None:
    producer = Producer(QUOTA, StrictTurns(max_wait=60.0))
    run(producer, 0, 50)
    flood, *fitting = producer.waited
    assert all(median(waited) < 2 for waited in fitting)
    assert len(flood) < len(fitting[0]) < len(fitting[1]) + 100


def picks(turns: Turns, begin: int, end: int) -> list[int]:
    """Let two levels wait all the time, for ten turns of 1,000 bytes each second."""
    picked = []
    for turn in range(begin * 10, end * 10):
        level = turns.pick([0.0, 0.0], turn / 10)
        assert level is not None
        turns.charge(level, 1_000)
        picked.append(level)
    return picked


def test_under_a_quota_levels_that_always_wait_get_their_shares() -> None:
    picked = picks(FairTurns([1, 3]).under_quota([0, 0], 0.0), 0, 100)
    assert picked.count(0) == pytest.approx(250, abs=5)


def test_what_a_level_has_sent_before_a_quota_was_known_counts_for_its_share() -> None:
    turns = FairTurns([1, 1]).under_quota([100_000, 20_000], 0.0)
    assert set(picks(turns, 0, 5)) == {1}
    assert {0, 1} == set(picks(turns, 5, 8))


def test_a_level_that_begins_to_flood_under_a_quota_shuts_no_other_out_for_long() -> None:
    turns = FairTurns([1, 1]).under_quota([0, 0], 0.0)
    for second in range(1_000):  # ten times more than is remembered
        assert turns.pick([0.0, None], second) == 0
        turns.charge(0, 10_000)
    assert picks(turns, 1_000, 1_100).index(0) < 10 * turns.REMEMBERED


def test_the_pace_follows_a_quota_that_is_raised_and_ends_with_it() -> None:
    producer = Producer(QUOTA)
    run(producer, 0, 30)
    producer.broker.quota = 10 * QUOTA
    run(producer, 30, 120)
    assert producer.accumulator.waiting == 0
    for waited in producer.waited:
        waited.clear()
    run(producer, 120, 125)
    assert all(max(waited) < 0.1 for waited in producer.waited)


def test_a_broker_that_does_not_answer_holds_up_only_its_own_partitions() -> None:
    producer = Producer(QUOTA)
    run(producer, 0, 5)
    producer.broker.silent = producer.topics[0].queue(0)
    before = len(producer.waited[2])
    run(producer, 5, 60)
    assert len(producer.waited[2]) - before > 0.7 * 55 * 33


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_record_of_any_size_is_sent_under_a_throttle(size: int) -> None:
    producer = Producer(QUOTA)
    producer.accumulator.throttled(1.0, 0.0)
    queue = producer.topics[0].queue(0)
    assert not producer.accumulator.admit(queue, size, 0.0)
    assert producer.accumulator.put(queue, Record(size, queue=queue))
    assert producer.accumulator.drain(512 * 1024, 0.0) == []
    assert producer.accumulator.next_permit < 3
    [batch] = producer.accumulator.drain(512 * 1024, 3.0)
    assert batch.size == size
