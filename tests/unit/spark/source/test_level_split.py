"""How far a micro-batch goes: the policies over offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.levels.policies import PolicyName, make_policy
from headway.kafka.reading.range_reader import Offsets
from headway.records.record_types import TopicPartition
from headway.spark.source.level_split import LevelSplit, Sightings, longest_waits

LEVELS = 3

partitions = st.builds(
    TopicPartition,
    st.sampled_from(["orders", "clicks"]),
    partition=st.integers(0, 11),
    level=st.integers(0, LEVELS - 1),
)
# The offset at which a partition stands, and how many wait behind it.
backlogs = st.dictionaries(partitions, st.tuples(st.integers(0, 2**40), st.integers(0, 5_000)))
limits = st.integers(7, 9_000)


def admission(name: PolicyName, limit: int, levels: int = LEVELS, max_wait: float = 60) -> LevelSplit:
    _, policy = make_policy(name, None, levels, limit, max_wait=max_wait)
    return LevelSplit(policy, levels, limit, Sightings())


def start_and_end(backlog: dict[TopicPartition, tuple[int, int]]) -> tuple[Offsets, Offsets]:
    start = {partition: at for partition, (at, _) in backlog.items()}
    return start, {partition: at + waiting for partition, (at, waiting) in backlog.items()}


def taken(start: Offsets, stop: Offsets) -> list[int]:
    return [sum(stop[at] - start[at] for at in stop if at.level == level) for level in range(LEVELS)]


@pytest.mark.parametrize("name", ["fair", "strict"])
@given(backlog=backlogs, limit=limits)
def test_a_micro_batch_takes_the_whole_limit_while_so_many_wait_and_never_more(
    name: PolicyName, backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start, end = start_and_end(backlog)
    stop = admission(name, limit).stops(start, end, 0)
    assert stop.keys() == end.keys()
    assert all(start[at] <= stop[at] <= end[at] for at in end)
    assert sum(taken(start, stop)) == min(limit, sum(taken(start, end)))


@given(backlogs, limits)
def test_under_fair_each_level_gets_its_share_or_all_that_it_has(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start, end = start_and_end(backlog)
    shares, _ = make_policy("fair", None, LEVELS, limit)
    got, waiting = taken(start, admission("fair", limit).stops(start, end, 0)), taken(start, end)
    for level, share in enumerate(shares):
        # A share that does not divide 2^32 is exact to one part in 2^32 / share: one record here.
        assert got[level] >= min(share - 1, waiting[level])


@given(backlogs, limits)
def test_under_strict_no_level_gets_anything_while_a_higher_one_has_more(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start, end = start_and_end(backlog)
    got, waiting = taken(start, admission("strict", limit).stops(start, end, 0)), taken(start, end)
    for level in range(LEVELS):
        assert not got[level] or got[level + 1 :] == waiting[level + 1 :]


@given(backlogs, limits)
def test_under_capacity_burst_a_micro_batch_is_as_a_poll_of_the_java_client(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start, end = start_and_end(backlog)
    shares, _ = make_policy("capacity_burst", None, LEVELS, limit)
    stop = admission("capacity_burst", limit).stops(start, end, 0)
    assert taken(start, stop) == [min(pair) for pair in zip(shares, taken(start, end), strict=True)]


def test_under_capacity_burst_a_level_bursts_when_the_others_left_their_shares_for_a_while() -> None:
    low = TopicPartition("orders", partition=0)
    burst, start = admission("capacity_burst", 70), {low: 0}
    counts = []
    for _ in range(6):
        stop = burst.stops(start, {low: 1_000}, 0)
        counts.append(stop[low] - start[low])
        start = stop
    assert counts == [10, 10, 10, 10, 70, 70]


def test_under_strict_what_was_seen_waiting_too_long_comes_first() -> None:
    low, high = TopicPartition("orders", partition=0, level=0), TopicPartition("orders", partition=0, level=2)
    strict = admission("strict", 10, max_wait=60)
    start: Offsets = {low: 0, high: 0}
    start = strict.stops(start, {low: 4, high: 100}, now=0)
    assert start == {low: 0, high: 10}
    start = strict.stops(start, {low: 50, high: 200}, now=60)
    assert start == {low: 0, high: 20}
    # The four of the beginning are overdue, and so are the high ones of that time; the oldest level does not matter.
    start = strict.stops(start, {low: 50, high: 200}, now=61)
    assert start[low] + start[high] == 30
    later = strict.stops({low: 0, high: 100}, {low: 50, high: 200}, now=62)
    assert later[low] == 4


def test_partitions_take_turns_when_the_limit_is_below_their_number() -> None:
    twelve = [TopicPartition("orders", partition=partition) for partition in range(12)]
    start, end = dict.fromkeys(twelve, 0), dict.fromkeys(twelve, 100)
    fair = admission("fair", 5, levels=1)
    for _ in range(12):
        start = fair.stops(start, end, 0)
    assert set(start.values()) == {5}


def test_a_partition_with_little_is_not_held_back_by_one_with_much() -> None:
    much, little = TopicPartition("orders", partition=0), TopicPartition("orders", partition=1)
    fair = admission("fair", 10, levels=1)
    assert fair.stops({much: 0, little: 0}, {much: 1_000_000, little: 3}, 0) == {much: 7, little: 3}


@pytest.mark.quick("6")
@pytest.mark.parametrize("hours", [6, 48])
def test_how_long_a_record_waits_is_known_for_days_and_as_exactly_as_a_policy_needs(hours: int) -> None:
    at, spacing = TopicPartition("orders", partition=0), 3.75
    sightings, first = Sightings(spacing), 7.0
    for number in range(hours * 900):
        now = first + number * spacing
        sightings.note({at: number + 1}, now)
        if number % 997 == 0:
            [wait] = longest_waits(sightings, {at: 0}, {at: 1}, now).values()
            assert wait == now - first
            middle = number // 2  # the first record after it was seen half of the time ago
            [wait] = longest_waits(sightings, {at: middle}, {at: number + 2}, now).values()
            true = now - (first + middle * spacing)
            assert true * 7 / 8 - spacing <= wait <= true
    recent = now - 16 * spacing
    seen = sightings.before(recent)[at]
    assert recent - 2 * spacing <= first + (seen - 1) * spacing < recent


def test_sightings_are_kept_apart_and_bounded() -> None:
    at = TopicPartition("orders", partition=0)
    sightings = Sightings(spacing=1)
    for tenth in range(1_000):
        sightings.note({at: tenth}, tenth / 10)
    assert sightings.before(99.05) == {at: 980} or sightings.before(99.05) == {at: 990}
    assert sightings.before(1) == {at: 0}  # old ones are kept further apart
    assert sightings.before(0) == {}
    assert sightings.first_beyond({at: 985}) == 99
