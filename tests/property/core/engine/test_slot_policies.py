"""The slot policies, one slot at a time, against exact fractions."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.slot_policies import BurstSlots, FairSlots, SlotPolicy, StrictSlots
from headway.core.levels.fair import Fair
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition
from tests.plain_python import plain_python

shares_of_powers = st.lists(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), min_size=1, max_size=5)


@given(shares_of_powers, st.data())
def test_fair_picks_the_earliest_deadline_in_exact_fractions(shares: list[int], data: st.DataObject) -> None:
    fair, virtual_time = Fair(shares), Fraction(0)
    starts, was_idle = [Fraction(0)] * len(shares), [True] * len(shares)
    waitings = st.lists(st.integers(0, 2), min_size=len(shares), max_size=len(shares))
    for waiting in data.draw(st.lists(waitings, max_size=40)):
        for level, count in enumerate(waiting):
            if count and was_idle[level]:
                starts[level] = max(starts[level], virtual_time)
            was_idle[level] = not count
        ready = [level for level, count in enumerate(waiting) if count]
        expected = min(ready, key=lambda i: (starts[i] + Fraction(1, shares[i]), -i), default=None)
        assert fair.pick_one(waiting) == expected
        if expected is not None:
            virtual_time = max(virtual_time, starts[expected])
            starts[expected] += Fraction(1, shares[expected])


@given(shares_of_powers, st.integers(1, 200))
def test_fair_gives_levels_that_always_have_work_their_shares_to_within_a_few_slots(
    shares: list[int], picks: int
) -> None:
    fair = Fair(shares)
    taken = [0] * len(shares)
    for _ in range(picks):
        level = fair.pick_one([1] * len(shares))
        assert level is not None
        taken[level] += 1
    assert all(abs(got - picks * share / sum(shares)) <= len(shares) for got, share in zip(taken, shares, strict=True))


def ready_levels(counts: list[int], arrived: float) -> list[ReadyQueue[Any]]:
    levels: list[ReadyQueue[Any]] = [ReadyQueue() for _ in counts]
    for index, (level, count) in enumerate(zip(levels, counts, strict=True)):
        assignment: Assignment[Any] = Assignment(TopicPartition("orders", partition=0, level=index), OffsetMap(0), 1)
        level.arrive([Attempt(None, i, 1, None, assignment, arrived, i) for i in range(count)])
    return levels


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.floats(0, 10))
def test_fair_and_strict_use_every_slot_and_burst_never_more_than_a_level_may(counts: list[int], now: float) -> None:
    shares = [2**level for level in range(len(counts))]
    policies: list[SlotPolicy] = [FairSlots(shares), StrictSlots(5.0), BurstSlots(shares)]
    for policy in policies:
        levels = ready_levels(counts, arrived=0.0)
        while (picked := policy.pick(levels, now)) is not None:
            levels[picked].take(now)
        if isinstance(policy, BurstSlots):
            assert [level.slots for level in levels] == [min(pair) for pair in zip(counts, shares, strict=True)]
        else:
            assert [level.ready for level in levels] == [0] * len(counts)


@plain_python
def test_strict_looks_for_the_oldest_record_of_the_level_that_it_serves_only_if_a_lower_one_is_overdue() -> None:
    class Counting(ReadyQueue[Any]):
        searches = 0

        def oldest(self) -> float | None:
            self.searches += 1
            return super().oldest()

    levels = [Counting(), Counting()]
    for index, level in enumerate(levels):
        assignment: Assignment[Any] = Assignment(TopicPartition("orders", partition=0, level=index), OffsetMap(0), 1)
        level.arrive([Attempt(None, number, 1, None, assignment, 0.0, number) for number in range(100)])
    policy = StrictSlots(5.0)
    for _ in range(50):
        assert policy.pick(levels, 4.0) == 1
        levels[1].take(4.0)
    assert levels[1].searches == 0
    assert policy.pick(levels, 6.0) == 0
