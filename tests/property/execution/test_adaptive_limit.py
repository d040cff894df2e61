"""How many slots are used where their number adapts, beside simulated services."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.execution.gates.adaptive_limit import AdaptiveLimit

WORK: Any = None


@given(st.integers(1, 50), st.lists(st.integers(0, 60)))
def test_no_more_are_let_in_than_the_limit_which_stays_in_its_bounds(most: int, ends: list[int]) -> None:
    gate, running, now = AdaptiveLimit(most), 0, 0.0
    for count in ends:
        while gate.may_start(running, now):
            running += 1
            gate.started([], running, now)
        assert running <= gate.slots(most) <= most
        for _ in range(min(count, running)):
            running, now = running - 1, now + 0.01
            gate.ended(WORK, running, now)
            assert 1 <= gate.limit <= most


# The adaptive limit and services


@dataclass
class Service:
    """`capacity` works at a time, each `latency` seconds long; what comes on top waits, or slows all down."""

    capacity: int
    latency: float
    chance: random.Random | None = None
    """Makes latencies random: exponential, with this mean."""
    shares: bool = False
    now: float = 0.0
    _ends: list[float] = field(default_factory=list)
    _waiting: int = 0

    def start(self) -> None:
        if self.shares:  # as a processor is shared: each is slower by how many there are
            heappush(self._ends, self.now + self._seconds() * max(1.0, (len(self._ends) + 1) / self.capacity))
        elif len(self._ends) < self.capacity:
            heappush(self._ends, self.now + self._seconds())
        else:
            self._waiting += 1

    def next_end(self) -> float:
        self.now = heappop(self._ends)
        while self._waiting and len(self._ends) < self.capacity:
            self._waiting -= 1
            heappush(self._ends, self.now + self._seconds())
        return self.now

    def _seconds(self) -> float:
        return self.chance.expovariate(1 / self.latency) if self.chance else self.latency


@dataclass
class Load:
    """Works without end, and the limit after each of them."""

    limit: AdaptiveLimit
    service: Service
    limits: list[int] = field(default_factory=list)
    running: int = 0

    def run(self, works: int, at_each: Callable[[int], None] = lambda work: None) -> list[int]:
        for work in range(works):
            at_each(work)
            while self.running < self.limit.limit:
                self.running += 1
                self.limit.started([], self.running, self.service.now)
                self.service.start()
            self.running -= 1
            self.limit.ended(WORK, self.running, self.service.next_end())
            self.limits.append(self.limit.limit)
        return self.limits[-works:]


capacities = st.sampled_from([1, 2, 3, 5, 8, 13, 40, 100, 250])
latencies = st.sampled_from([0.01, 0.5, 20.0])
services = st.builds(
    Service, capacities, latencies, st.one_of(st.none(), st.builds(random.Random, st.integers(0, 99))), st.booleans()
).filter(lambda service: is_soon_tried(service.capacity, service.latency))


def is_soon_tried(capacity: int, latency: float) -> bool:
    """Return whether a service is slow enough: the limit looks by time, and the test runs each work one by one."""
    return capacity / latency <= 1_000


def near(capacity: int, limits: list[int]) -> bool:
    mean = sum(limits) / len(limits)
    return 0.6 * capacity <= mean <= 1.6 * capacity + 1 and max(limits) <= 2.5 * capacity + 2


@given(services)
@example(Service(5, 0.5, random.Random(3), True))  # measured over too few jobs, it drifts to three times the capacity
@example(Service(13, 0.5, random.Random(2), True))
@settings(max_examples=settings().max_examples // 5, derandomize=True)
def test_it_finds_the_capacity_of_a_service_and_stays_near(service: Service) -> None:
    load = Load(AdaptiveLimit(500), service)
    window = 0.2 / service.latency * service.capacity  # works in the time that a look takes at the least
    load.run(int(40 * window) + 8000 + 40 * service.capacity)
    assert near(service.capacity, load.run(int(20 * window) + 8000))


@given(services, st.tuples(capacities, latencies).filter(lambda change: is_soon_tried(*change)))
@example(Service(250, 20.0, None, True), (100, 0.01))  # was at the most allowed, and more were worth it
@settings(max_examples=settings().max_examples // 5, derandomize=True)
def test_it_follows_a_service_that_changes(service: Service, change: tuple[int, float]) -> None:
    capacity, latency = change
    load = Load(AdaptiveLimit(500), service)
    load.run(10_000)
    service.capacity, service.latency = capacity, latency
    window = 0.2 / latency * capacity
    load.run(int(60 * window) + 16_000 + 60 * capacity)
    assert near(capacity, load.run(int(20 * window) + 8000))


@given(st.integers(1, 300), st.sampled_from([0.01, 20.0]))
@settings(max_examples=settings().max_examples // 5, derandomize=True)
def test_it_grows_to_the_most_allowed_where_more_always_help_and_stays_there(most: int, latency: float) -> None:
    load = Load(AdaptiveLimit(most), Service(10_000, latency))
    load.run(int(20 * 0.2 / latency * most) + 3000)
    assert set(load.run(5000)) == {most}


@given(st.floats(0.0001, 1))
@settings(max_examples=settings().max_examples // 5, derandomize=True)
def test_for_handlers_that_take_turns_on_one_processor_one_or_two_are_enough(seconds: float) -> None:
    load = Load(AdaptiveLimit(64), Service(1, seconds, shares=True))
    load.run(3000 + int(15 * 0.2 / seconds))
    assert set(load.run(1000)) <= {1, 2, 3}


def test_it_takes_few_works_to_grow_and_to_shrink() -> None:
    load = Load(AdaptiveLimit(500), Service(100, 0.05))
    assert max(load.run(1500)) >= 100
    load.run(5000)
    load.service.capacity = 5
    load.run(6000)
    assert near(5, load.run(2000))
    load.service.capacity = 100
    assert max(load.run(4000)) >= 80


def test_most_of_the_throughput_that_there_is_is_had_while_it_goes_to_and_fro() -> None:
    load = Load(AdaptiveLimit(500), Service(40, 0.05, random.Random(1)))
    load.run(5000)
    begin = load.service.now
    load.run(20_000)
    assert 20_000 / (load.service.now - begin) > 0.85 * 40 / 0.05


def test_idle_time_does_not_shrink_it() -> None:
    load = Load(AdaptiveLimit(64), Service(10_000, 0.05))
    load.run(3000)
    assert load.limit.limit == 64
    for _ in range(5000):  # now and then a work, alone
        load.service.now += 3.0
        load.limit.started([], 1, load.service.now)
        load.limit.ended(WORK, 0, load.service.now + 0.05)
    assert load.limit.limit == 64


def test_bursts_of_works_with_idle_time_between_let_it_grow() -> None:
    limit, now = AdaptiveLimit(64), 0.0
    for _ in range(100):
        left, running = 80, 0
        while left or running:
            while left and running < limit.limit:
                left, running = left - 1, running + 1
                limit.started([], running, now)
            now += 0.05 / running  # in turn, each after 0.05 s
            running -= 1
            limit.ended(WORK, running, now)
        now += 10.0
    assert limit.limit > 32


def test_one_slot_stays_one_slot() -> None:
    assert set(Load(AdaptiveLimit(1), Service(5, 0.1)).run(1000)) == {1}
