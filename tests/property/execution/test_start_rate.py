"""How many works may start at a rate, beside exact sums."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.execution.gates.start_rate import StartRate

rates = st.floats(0.01, 20_000)
pauses = st.lists(st.one_of(st.just(0.0), st.floats(0, 0.01), st.floats(0, 10)), max_size=60)


@given(rates, pauses)
def test_over_any_stretch_no_more_start_than_the_rate_allows_and_one_burst(rate: float, pauses: list[float]) -> None:
    burst = burst_of(rate)
    starts = starts_of(StartRate(rate), pauses, wanted=1_000_000)
    for first, (begin, _) in enumerate(starts):
        count = 0
        for end, started in starts[first:]:
            count += started
            assert count <= burst + Fraction(rate) * (Fraction(end) - Fraction(begin)) + Fraction(1, 1_000_000)


@given(rates, pauses, st.integers(1, 5))
def test_what_the_rate_allows_is_never_refused(rate: float, pauses: list[float], wanted: int) -> None:
    burst = burst_of(rate)
    allowed, last = burst, Fraction(0)
    for now, started in starts_of(StartRate(rate), pauses, wanted):
        grown, last = allowed + Fraction(rate) * (Fraction(now) - last), Fraction(now)
        allowed = grown if grown < burst else burst
        assert started <= allowed + Fraction(1, 1_000_000)
        assert started == wanted or allowed - started < 1
        allowed -= started


@given(rates, st.integers(1, 50))
@example(rate=0.01, count=3)
def test_who_waits_for_the_next_change_can_start_some_then_and_is_not_woken_in_vain(rate: float, count: int) -> None:
    gate, now, grain = StartRate(rate), 5.0, max(1, int(rate / 100))
    for _ in range(count):
        while free := gate.allowed(now):
            gate.started(jobs(free), free, now)
        later = gate.opens_at()
        assert later is not None
        assert now < later <= now + max(1 / rate, 0.01) + 1e-6
        now = later
        assert gate.allowed(now) in (grain, grain + 1)


def test_after_a_batch_that_took_more_than_there_was_the_rate_is_made_up_for() -> None:
    gate = StartRate(100)
    assert gate.allowed(0.0) == 5
    gate.started(jobs(50), running=50, now=0.0)
    assert gate.allowed(0.44) == 0
    assert gate.opens_at() == pytest.approx(0.46)
    assert gate.allowed(0.46) == 1


def test_a_clock_that_stands_still_gives_nothing_twice() -> None:
    gate = StartRate(10)
    gate.started(jobs(gate.allowed(1.0)), 1, 1.0)
    assert [gate.allowed(1.0), gate.allowed(0.5), gate.allowed(1.0)] == [0, 0, 0]


shares = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 0.001, 0.02, 0.3, 4.0])), max_size=40)


@given(st.floats(0.01, 20_000), st.lists(shares, min_size=1, max_size=4))
def test_members_whose_shares_are_at_most_the_whole_start_no_more_than_the_rate_and_a_burst_each(
    rate: float, of_members: list[list[tuple[float, float]]]
) -> None:
    members = [StartRate(rate) for _ in of_members]
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
            free = member.allowed(now)
            assert free == 0 or part > 0
            member.started(jobs(free), free, now)
            started += free
        now += pause
        assert started <= rate * now * (1 + 1e-9) + len(members) * max(1.0, rate / 20) + 1e-6


def test_a_share_that_grows_is_used_from_then_on() -> None:
    member = StartRate(100)
    member.share(0.0, 0.0)
    assert member.allowed(50.0) == 0
    assert member.opens_at() is None
    member.share(0.25, 100.0)
    member.started(jobs(member.allowed(100.0)), 1, 100.0)
    assert member.opens_at() == pytest.approx(100.04)
    assert [member.allowed(100.02), member.allowed(100.0401)] == [0, 1]


def jobs(count: int) -> Any:
    return [None] * count


def burst_of(rate: float) -> Fraction:
    twentieth = Fraction(rate) / 20
    return twentieth if twentieth > 1 else Fraction(1)


def starts_of(gate: StartRate, pauses: Sequence[float], wanted: int) -> list[tuple[float, int]]:
    starts, now = [], 0.0
    for pause in pauses:
        now += pause
        count = max(0, min(wanted, gate.allowed(now)))
        gate.started(jobs(count), count, now)
        starts.append((now, count))
    return starts
