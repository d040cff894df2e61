"""How many may start: the rate against exact sums, the limits against simulated services."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.core.engine.concurrency import AdaptiveLimit, Concurrency

rates = st.floats(0.01, 20_000)
pauses = st.lists(st.one_of(st.just(0.0), st.floats(0, 0.01), st.floats(0, 10)), max_size=60)

# The rate


@given(rates, pauses)
def test_over_any_stretch_no_more_start_than_the_rate_allows_and_one_burst(rate: float, pauses: list[float]) -> None:
    burst = burst_of(rate)
    starts = starts_of(Concurrency(1_000_000, rate=rate), pauses, wanted=1_000_000)
    for first, (begin, _) in enumerate(starts):
        count = 0
        for end, started in starts[first:]:
            count += started
            assert count <= burst + Fraction(rate) * (Fraction(end) - Fraction(begin)) + Fraction(1, 1_000_000)


@given(rates, pauses, st.integers(1, 5))
def test_what_the_rate_allows_is_never_refused(rate: float, pauses: list[float], wanted: int) -> None:
    burst = burst_of(rate)
    allowed, last = burst, Fraction(0)
    for now, started in starts_of(Concurrency(1_000_000, rate=rate), pauses, wanted):
        grown, last = allowed + Fraction(rate) * (Fraction(now) - last), Fraction(now)
        allowed = grown if grown < burst else burst
        assert started <= allowed + Fraction(1, 1_000_000)
        assert started == wanted or allowed - started < 1
        allowed -= started


@given(rates, st.integers(1, 50))
@example(rate=0.01, count=3)
def test_who_waits_for_the_next_change_can_start_some_then_and_is_not_woken_in_vain(rate: float, count: int) -> None:
    admission, now, grain = Concurrency(1_000_000, rate=rate), 5.0, max(1, int(rate / 100))
    for _ in range(count):
        while free := admission.free(0, now):
            admission.started(free, free, now)
        later = admission.next_change()
        assert later is not None
        assert now < later <= now + max(1 / rate, 0.01) + 1e-6
        now = later
        assert admission.free(0, now) in (grain, grain + 1)


def test_after_a_batch_that_took_more_than_there_was_the_rate_is_made_up_for() -> None:
    admission = Concurrency(1000, rate=100)
    assert admission.free(0, 0.0) == 5
    admission.started(50, running=50, now=0.0)
    assert admission.free(0, 0.44) == 0
    assert admission.next_change() == pytest.approx(0.46)
    assert admission.free(0, 0.46) == 1


def test_a_clock_that_stands_still_gives_nothing_twice() -> None:
    admission = Concurrency(1000, rate=10)
    admission.started(admission.free(0, 1.0), 1, 1.0)
    assert [admission.free(1, 1.0), admission.free(1, 0.5), admission.free(1, 1.0)] == [0, 0, 0]


shares = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 0.001, 0.02, 0.3, 4.0])), max_size=40)


@given(st.floats(0.01, 20_000), st.lists(shares, min_size=1, max_size=4))
def test_members_whose_shares_are_at_most_the_whole_start_no_more_than_the_rate_and_a_burst_each(
    rate: float, of_members: list[list[tuple[float, float]]]
) -> None:
    members = [Concurrency(1_000_000, rate=rate) for _ in of_members]
    for member in members:
        member.share(0.0, 0.0)
    started, now = 0, 0.0
    for turn in range(max(map(len, of_members))):
        given_away = 0.0
        for member, its in zip(members, of_members, strict=True):
            part, pause = its[turn] if turn < len(its) else (0.0, 0.0)
            part = min(part, 1.0 - given_away)
            given_away += part
            member.share(part, now)
            free = member.free(0, now)
            assert free == 0 or part > 0
            member.started(free, free, now)
            started += free
        now += pause
        assert started <= rate * now * (1 + 1e-9) + len(members) * max(1.0, rate / 20) + 1e-6


def test_a_share_that_grows_is_used_from_then_on() -> None:
    member = Concurrency(1000, rate=100)
    member.share(0.0, 0.0)
    assert member.free(0, 50.0) == 0
    assert member.next_change() is None
    member.share(0.25, 100.0)
    member.started(member.free(0, 100.0), 1, 100.0)
    assert member.next_change() == pytest.approx(100.04)
    assert [member.free(0, 100.02), member.free(0, 100.0401)] == [0, 1]


def burst_of(rate: float) -> Fraction:
    twentieth = Fraction(rate) / 20
    return twentieth if twentieth > 1 else Fraction(1)


def starts_of(admission: Concurrency, pauses: Sequence[float], wanted: int) -> list[tuple[float, int]]:
    starts, now = [], 0.0
    for pause in pauses:
        now += pause
        count = max(0, min(wanted, admission.free(0, now)))
        admission.started(count, count, now)
        starts.append((now, count))
    return starts


# The limits


@given(st.integers(1, 50), st.booleans(), st.lists(st.integers(0, 60)))
def test_no_more_are_let_in_than_the_limit_which_stays_in_its_bounds(
    most: int, adaptive: bool, ends: list[int]
) -> None:
    admission, running, now = Concurrency(most, adaptive=adaptive), 0, 0.0
    for count in ends:
        free = admission.free(running, now)
        running += max(0, free)
        admission.started(max(0, free), running, now)
        assert running <= most
        for _ in range(min(count, running)):
            running, now = running - 1, now + 0.01
            admission.ended(running, now)
            assert 1 <= admission.limit <= most


def test_a_limit_that_is_not_adaptive_is_what_it_was_set_to() -> None:
    admission = Concurrency(7)
    assert admission.free(3, 0.0) == 4
    assert admission.next_change() is None


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
                self.limit.runs(self.running, self.service.now)
                self.service.start()
            self.running -= 1
            self.limit.ended(self.running, self.service.next_end())
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
@settings(max_examples=20, derandomize=True)
def test_it_finds_the_capacity_of_a_service_and_stays_near(service: Service) -> None:
    load = Load(AdaptiveLimit(500), service)
    window = 0.2 / service.latency * service.capacity  # works in the time that a look takes at the least
    load.run(int(40 * window) + 8000 + 40 * service.capacity)
    assert near(service.capacity, load.run(int(20 * window) + 8000))


@given(services, st.tuples(capacities, latencies).filter(lambda change: is_soon_tried(*change)))
@example(Service(250, 20.0, None, True), (100, 0.01))  # was at the most allowed, and more were worth it
@settings(max_examples=20, derandomize=True)
def test_it_follows_a_service_that_changes(service: Service, change: tuple[int, float]) -> None:
    capacity, latency = change
    load = Load(AdaptiveLimit(500), service)
    load.run(10_000)
    service.capacity, service.latency = capacity, latency
    window = 0.2 / latency * capacity
    load.run(int(60 * window) + 16_000 + 60 * capacity)
    assert near(capacity, load.run(int(20 * window) + 8000))


@given(st.integers(1, 300), st.sampled_from([0.01, 20.0]))
@settings(max_examples=20, derandomize=True)
def test_it_grows_to_the_most_allowed_where_more_always_help_and_stays_there(most: int, latency: float) -> None:
    load = Load(AdaptiveLimit(most), Service(10_000, latency))
    load.run(int(20 * 0.2 / latency * most) + 3000)
    assert set(load.run(5000)) == {most}


@given(st.floats(0.0001, 1))
@settings(max_examples=20, derandomize=True)
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
        load.limit.runs(1, load.service.now)
        load.limit.ended(0, load.service.now + 0.05)
    assert load.limit.limit == 64


def test_bursts_of_works_with_idle_time_between_let_it_grow() -> None:
    limit, now = AdaptiveLimit(64), 0.0
    for _ in range(100):
        left, running = 80, 0
        while left or running:
            while left and running < limit.limit:
                left, running = left - 1, running + 1
                limit.runs(running, now)
            now += 0.05 / running  # in turn, each after 0.05 s
            running -= 1
            limit.ended(running, now)
        now += 10.0
    assert limit.limit > 32


def test_one_slot_stays_one_slot() -> None:
    assert set(Load(AdaptiveLimit(1), Service(5, 0.1)).run(1000)) == {1}
