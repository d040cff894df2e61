"""The limit that follows from what micro-batches take: a simulation, and properties."""

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headway.spark.source.limit_control import AIM, LimitControl

TARGET = 1.0
MOST = 10_000_000
HIGH_PER_S = 100
OVERHEAD = 0.15


@dataclass
class Simulated:
    """A query behind a flood at a low level, and 100 high records a second, whose waits are noted.

    `rate` returns the records per second at a time, `pause` the seconds by which a micro-batch at a time is longer.
    """

    rate: Callable[[float], float]
    pause: Callable[[float], float] = lambda now: 0.0
    noise: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)
    now: float = 0.0
    done: int = 0

    def run(self, seconds: float) -> "Simulated":
        chance, control, read = random.Random(7), LimitControl(TARGET, 16, MOST), 0.0
        while self.now < seconds:
            count = control.limit  # the flood fills it
            took = OVERHEAD + count / self.rate(self.now)
            took = took * chance.lognormvariate(0, self.noise) + self.pause(self.now)
            arrived = [read + number / HIGH_PER_S for number in range(int((self.now - read) * HIGH_PER_S))]
            self.limits.append((self.now, count))
            read, self.now = self.now, self.now + took
            self.waits += [(self.now, self.now - at) for at in arrived]
            self.done += count
            control.note(count, took)
        return self

    def p99(self, since: float = 10.0) -> float:
        """The 99th percentile of the waits from a time on."""
        return statistics.quantiles([wait for at, wait in self.waits if at > since], n=100)[-1]

    def between(self, start: float, end: float) -> Iterator[int]:
        """The limits in a stretch of time."""
        return (limit for at, limit in self.limits if start <= at < end)


def halves_and_comes_back(now: float) -> float:
    return 25_000.0 if 200 <= now < 400 else 50_000.0


@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_the_high_level_waits_at_most_twice_the_target_while_the_speed_halves_and_comes_back(noise: float) -> None:
    ran = Simulated(halves_and_comes_back, noise=noise).run(600)
    assert ran.p99() <= 2 * TARGET
    # The aim is 0.65 s of work at 50,000/s and at 25,000/s; and the time is used.
    assert ran.done > 0.75 * (400 * 50_000 + 200 * 25_000) * (0.65 / 0.8)
    for start, end, ideal in ((30, 200, 32_500), (230, 400, 16_250), (430, 600, 32_500)):
        limits = list(ran.between(start, end))
        swing = max(limits) / min(limits)
        assert swing < (1.02 if noise == 0 else 2.2), (start, swing)
        assert statistics.mean(limits) == pytest.approx(ideal, rel=0.02 if noise == 0 else 0.2)


def test_a_lost_executor_costs_one_late_micro_batch_and_the_limit_comes_back() -> None:
    # It stands still for 20 s at 200 s, goes on with half of the cores, and has all again at 300 s.
    def pause(now: float) -> float:
        return 20.0 if 200 <= now < 201 else 0.0

    ran = Simulated(lambda now: 25_000.0 if 200 <= now < 300 else 50_000.0, pause, noise=0.1).run(400)
    assert ran.p99(since=225) <= 2 * TARGET
    late = [(at, wait) for at, wait in ran.waits if wait > 2.2 * TARGET]
    # Who came while it stood still waits for that, and then for one micro-batch.
    assert 220 < min(at for at, _ in late) <= max(at for at, _ in late) < 225
    assert 20 < max(wait for _, wait in late) < 20 + 2.2 * TARGET
    assert statistics.mean(ran.between(310, 400)) == pytest.approx(32_500, rel=0.2)


def test_a_single_pause_with_few_records_changes_nothing() -> None:
    control = LimitControl(TARGET, 16, MOST, limit=30_000)
    control.note(12, 7.0)
    assert control.limit == 30_000
    control.note(12, 7.0)  # twice is no accident
    assert control.limit == 7_500


@given(st.lists(st.tuples(st.integers(0, MOST), st.floats(0, 1e6)), max_size=50), st.integers(1, 500))
def test_the_limit_stays_within_its_bounds(noted: list[tuple[int, float]], least: int) -> None:
    control = LimitControl(TARGET, least, 1_000)
    for records, seconds in noted:
        control.note(records, seconds)
        assert least <= control.limit <= 1_000


@given(
    st.floats(0, 0.75),
    st.floats(10, 1e6),
    st.integers(16, MOST),
)
@example(0.6875, 543.0, 16)  # the last corrections are less than half a record each
def test_without_noise_it_comes_to_the_aim_from_one_side(overhead: float, rate: float, limit: int) -> None:
    ideal = (AIM * TARGET - overhead) * rate
    assume(ideal >= 50)  # fewer records are no more exact than one of them
    control = LimitControl(TARGET, 1, MOST, limit)
    sides = set()
    for _ in range(600):
        control.note(control.limit, overhead + control.limit / rate)
        if abs(control.limit - ideal) > max(1.5, 0.01 * ideal):
            sides.add(control.limit > ideal)
    assert control.limit == pytest.approx(min(MOST, max(1, ideal)), rel=0.05, abs=2)
    assert len(sides) <= 1


def test_records_are_slow_if_they_take_more_than_half_of_the_aim_by_the_last_micro_batch() -> None:
    control = LimitControl(TARGET, 16, MOST, limit=100_000)
    assert not control.is_slow(MOST)  # nothing is known yet
    control.note(100, 0.1)  # too small for the limit
    assert not control.is_slow(round(499 * AIM * TARGET))
    assert control.is_slow(round(501 * AIM * TARGET))
    control.note(0, 1.0)
    assert control.is_slow(round(501 * AIM * TARGET))


@given(st.integers(2, 400), st.floats(1.5, 100))
def test_a_target_out_of_reach_is_counted_at_the_least_limit(batches: int, seconds: float) -> None:
    control = LimitControl(TARGET, 16, MOST, limit=16)
    for _ in range(batches):
        control.note(16, seconds)
    assert (control.limit, control.at_least_for) == (16, batches)
