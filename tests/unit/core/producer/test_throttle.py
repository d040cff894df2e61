"""Levels of a producer that a broker's quota throttles: a broker that counts as Kafka does, without a network."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import pytest

from headway.core.producer.accumulator import Accumulator
from headway.core.producer.turn_policies import FairTurns

QUOTA = 100_000  # bytes a second
STEP = 0.01
WINDOW = 10.0


@dataclass(eq=False, slots=True)
class Record:
    size: int = 1_000
    since: float = 0.0
    level: int = 0
    queue: Any = field(default=None, repr=False)


class Broker:
    """Answers each batch at once; while the average is above the quota, it then reads nothing for some time."""

    def __init__(self, quota: float) -> None:
        self.quota = quota
        self.queued: deque[list[Record]] = deque()
        self.muted_until = 0.0
        self.read: deque[tuple[float, int]] = deque()
        self.pauses: list[float] = []

    def turn(self, now: float) -> list[Record]:
        records: list[Record] = []
        while self.queued and now >= self.muted_until:
            request = self.queued.popleft()
            while self.queued and len(request) < 16:  # others of the same time go along
                request = request + self.queued.popleft()
            self.read.append((now, sum(record.size for record in request)))
            while self.read[0][0] < now - WINDOW:
                self.read.popleft()
            over = sum(size for _, size in self.read) / WINDOW - self.quota
            if over > 0:
                pause = over / self.quota * WINDOW
                self.muted_until = now + pause
                self.pauses.append(pause)
            records += request
        return records


class Producer:
    """Drives an accumulator as the sender does, with one topic of three levels and two partitions."""

    def __init__(self, quota: float) -> None:
        self.accumulator: Accumulator[Record] = Accumulator(3, FairTurns([1, 2, 4]))
        self.topics = [self.accumulator.topic(f"work-{level}", level) for level in range(3)]
        for topic in self.topics:
            self.accumulator.learn(topic, 2, range(2))
        self.broker = Broker(quota)
        self.sent = 0
        self.waited: list[list[float]] = [[], [], []]

    def send(self, level: int, now: float) -> None:
        self.sent += 1
        queue = self.topics[level].queue(self.sent % 2)
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
    assert sum(map(len, producer.waited)) * 1_000 > 0.9 * 60 * QUOTA


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
    silent = producer.topics[0].queue(0)
    answering, producer.broker.queued = producer.broker.queued, deque()
    producer.broker.queued = deque(each for each in answering if each[0].queue is not silent)
    before = len(producer.waited[2])
    take = producer.broker.turn

    def turn(now: float) -> list[Record]:
        while producer.broker.queued and producer.broker.queued[0][0].queue is silent:
            producer.broker.queued.popleft()
        return take(now)

    producer.broker.turn = turn  # type: ignore[method-assign]
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
    assert producer.accumulator.next_room < 3
    [batch] = producer.accumulator.drain(512 * 1024, 3.0)
    assert batch.size == size
