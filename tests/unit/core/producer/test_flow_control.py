"""Windows: wide for who is alone, narrow for a flood beside a quiet neighbour."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from headway.core.producer.accumulator import Accumulator, Limits
from headway.core.producer.queues import Queue
from headway.core.producer.turn_policies import FairTurns

KB = 1000
LIMITS = Limits(memory=1 << 30, window=4_000 * KB)


@dataclass(eq=False, slots=True)
class Record:
    size: int
    since: float = 0.0
    queue: Any = field(default=None, repr=False)


class Broker:
    """Reports what a queue has in flight: so many bytes a second, each at the earliest `delay` after it came."""

    def __init__(self, delay: float, rate: float) -> None:
        self.accumulator: Accumulator[Record] = Accumulator(1, FairTurns([1]), LIMITS)
        self.delay, self.rate = delay, rate
        self.now = 0.0
        self.free_at = 0.0
        self.on_its_way: deque[tuple[float, float, Queue[Record], int]] = deque()  # reported at, handed over at
        self.longest: dict[str, float] = {}

    def queue(self, topic: str, partition: int = 0) -> Queue[Record]:
        queues = self.accumulator.topic(topic, 0)
        self.accumulator.learn(queues, 4, range(4))
        return queues.queue(partition)

    def send(self, queue: Queue[Record], size: int) -> bool:
        """Hand over what has room in the window; the rest is not sent."""
        if queue.credit < size and not self.accumulator.admit(queue, size, self.now):
            return False
        queue.credit -= size
        self.free_at = max(self.free_at, self.now) + size / self.rate
        self.on_its_way.append((self.free_at + self.delay, self.now, queue, size))
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while self.on_its_way and self.on_its_way[0][0] <= self.now:
            _, since, queue, size = self.on_its_way.popleft()
            name = queue.topic.kafka_topic
            self.longest[name] = max(self.longest.get(name, 0.0), self.now - since)
            if not queue.returned:
                queue.reported.append(queue)
            queue.returned += size
        self.accumulator.settle(self.now)

    def run(self, seconds: float, floods: list[Queue[Record]], quiet: list[Queue[Record]]) -> None:
        """Every millisecond, so much of each flood that its window is always full; a quiet record every 10."""
        for step in range(int(seconds * 1000)):
            for queue in quiet if step % 10 == 0 else []:
                self.send(queue, KB)
            for queue in floods:
                while self.send(queue, 4 * KB):
                    pass
            self.pass_time(0.001)


@pytest.mark.parametrize(("delay", "rate"), [(0.005, 40_000 * KB), (0.050, 40_000 * KB), (0.020, 10_000 * KB)])
def test_beside_a_quiet_neighbour_a_flood_keeps_the_wire_busy_and_little_more(delay: float, rate: float) -> None:
    broker = Broker(delay, rate)
    flood, quiet = broker.queue("flood"), broker.queue("quiet")
    broker.run(1.0, [], [quiet])
    broker.run(3.0, [flood], [quiet])
    assert flood.window < LIMITS.window
    broker.longest.clear()
    broker.run(2.0, [flood], [quiet])
    assert broker.longest["quiet"] < 2 * delay + 0.004
    assert flood.rate > 0.8 * rate


def test_a_flood_that_was_alone_for_long_and_one_that_is_narrow_for_long_do_not_forget_how_quick_a_report_is() -> None:
    broker = Broker(0.050, 10_000 * KB)
    flood, quiet = broker.queue("flood"), broker.queue("quiet")
    broker.run(30.0, [flood], [])
    broker.run(2.0, [flood], [quiet])
    for _ in range(3):
        broker.longest.clear()
        broker.run(10.0, [flood], [quiet])
        assert broker.longest["quiet"] < 0.1
        assert flood.rate > 8_000 * KB


def test_a_way_that_has_become_longer_is_measured_anew() -> None:
    broker = Broker(0.010, 20_000 * KB)
    flood, quiet = broker.queue("flood"), broker.queue("quiet")
    broker.run(3.0, [flood], [quiet])
    broker.delay = 0.060
    broker.run(20.0, [flood], [quiet])
    assert flood.rate > 16_000 * KB


def test_a_flood_that_is_alone_has_all_of_its_window_and_has_it_back_when_the_neighbour_is_gone() -> None:
    broker = Broker(0.005, 40_000 * KB)
    flood, quiet = broker.queue("flood"), broker.queue("quiet")
    broker.run(1.0, [flood], [])
    assert flood.window == LIMITS.window
    broker.run(2.0, [flood], [quiet])
    assert flood.window < LIMITS.window / 2
    broker.run(12.0, [flood], [])
    assert flood.window == LIMITS.window


def test_floods_do_not_narrow_each_other_nor_does_one_that_has_just_ended() -> None:
    broker = Broker(0.005, 40_000 * KB)
    floods = [broker.queue("flood", partition) for partition in range(2)]
    broker.run(2.0, floods, [])
    assert [queue.window for queue in floods] == [LIMITS.window] * 2
    broker.run(2.0, floods[:1], [])
    assert floods[0].window == LIMITS.window


def test_a_neighbour_that_has_sent_only_once_narrows_nobody() -> None:
    broker = Broker(0.005, 40_000 * KB)
    flood = broker.queue("flood")
    broker.send(broker.queue("quiet"), KB)
    broker.run(2.0, [flood], [])
    assert flood.window == LIMITS.window
