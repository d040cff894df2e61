"""What a micro-batch reads: properties of the pure planning."""

import json

from hypothesis import given
from hypothesis import strategies as st

from headway.core.capacity import exponential
from headway.kafka.ranges import Offsets, Range
from headway.records import TopicPartition
from headway.spark.planning import from_json, limited, pack, ranges, task_count, to_json

LEVELS = 3

partitions = st.builds(
    TopicPartition, st.sampled_from(["orders", "clicks"]), st.integers(0, 11), st.integers(0, LEVELS - 1)
)
offsets = st.dictionaries(partitions, st.integers(0, 2**60))
# The offset at which a partition stands, and how many wait behind it.
backlogs = st.dictionaries(partitions, st.tuples(st.integers(0, 2**40), st.integers(0, 5_000)))


def start_and_end(backlog: dict[TopicPartition, tuple[int, int]]) -> tuple[Offsets, Offsets]:
    start = {partition: at for partition, (at, _) in backlog.items()}
    return start, {partition: at + waiting for partition, (at, waiting) in backlog.items()}


def level_sum(end: Offsets, start: Offsets, level: int) -> int:
    return sum(end[partition] - start[partition] for partition in end if partition.level == level)


@given(offsets)
def test_offsets_survive_sparks_checkpoint(given_offsets: Offsets) -> None:
    assert from_json(json.loads(json.dumps(to_json(given_offsets)))) == given_offsets


@given(offsets)
def test_equal_offsets_are_the_same_text_or_spark_would_plan_empty_micro_batches(given_offsets: Offsets) -> None:
    backwards = dict(reversed(given_offsets.items()))
    assert json.dumps(to_json(backwards)) == json.dumps(to_json(given_offsets))


@given(backlogs, st.integers(7, 9_000))
def test_a_micro_batch_takes_the_whole_limit_while_so_many_wait_and_never_more(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start, end = start_and_end(backlog)
    stop = limited(start, end, exponential(LEVELS, limit))
    assert stop.keys() == end.keys()
    assert all(start[at] <= stop[at] <= end[at] for at in end)
    assert sum(stop.values()) - sum(start.values()) == min(limit, sum(end.values()) - sum(start.values()))


@given(backlogs, st.integers(7, 9_000))
def test_each_level_gets_its_share_or_all_that_it_has(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start, end = start_and_end(backlog)
    shares = exponential(LEVELS, limit)
    stop = limited(start, end, shares)
    for level, share in enumerate(shares):
        # A share that does not divide 2^32 is exact to one part in 2^32 / share: one record here.
        assert level_sum(stop, start, level) >= min(share - 1, level_sum(end, start, level))


def test_partitions_take_turns_when_the_limit_is_below_their_number() -> None:
    twelve = [TopicPartition("orders", partition) for partition in range(12)]
    start, end = dict.fromkeys(twelve, 0), dict.fromkeys(twelve, 100)
    for _ in range(12):
        start = limited(start, end, [5])
    assert set(start.values()) == {5}


def test_a_partition_with_little_is_not_held_back_by_one_with_much() -> None:
    much, little = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert limited({much: 0, little: 0}, {much: 1_000_000, little: 3}, [10]) == {much: 7, little: 3}


def test_a_partition_that_is_new_has_no_range_until_its_start_is_in_the_checkpoint() -> None:
    old, new = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert ranges({old: 2}, {old: 5, new: 0}) == [Range(old, 2, 5)]
    assert ranges({old: 5, new: 0}, {old: 5, new: 4}) == [Range(new, 0, 4)]


@given(backlogs, st.integers(1, 8))
def test_packing_splits_no_range_and_loses_none(backlog: dict[TopicPartition, tuple[int, int]], tasks: int) -> None:
    wanted = ranges(*start_and_end(backlog))
    groups = pack(wanted, tasks)
    assert sorted(item for group in groups for item in group) == wanted
    assert len(groups) == min(tasks, len(wanted))


@given(backlogs, st.integers(1, 8))
def test_groups_differ_by_no_more_than_their_longest_range(
    backlog: dict[TopicPartition, tuple[int, int]], tasks: int
) -> None:
    lengths = [(sum(map(len, group)), max(map(len, group))) for group in pack(ranges(*start_and_end(backlog)), tasks)]
    if len(lengths) == tasks:
        shortest = min(length for length, _ in lengths)
        assert all(length - longest <= shortest for length, longest in lengths)


def test_a_large_micro_batch_is_worth_more_tasks_than_this_machine_has_cores() -> None:
    assert task_count(records=1_000, cores=2) == 2
    assert task_count(records=10_000_000, cores=2) == 100
