"""The ranges of a micro-batch and its tasks: properties of the pure planning."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.kafka.reading.range_reader import Offsets, Range
from headway.kafka.reading.topic_naming import PlainPartition, TopicNaming, kafka_topic
from headway.records.record_types import TopicPartition
from headway.spark.source.range_packing import (
    RANGES_FOR_ONE,
    RECORDS_OF_A_RANGE,
    TaskOptions,
    cut,
    pack,
    ranges,
)
from headway.spark.source.stream_offset import StreamOffset, naming_of

LEVELS = 3

partitions = st.builds(
    TopicPartition,
    st.sampled_from(["orders", "clicks"]),
    partition=st.integers(0, 11),
    level=st.integers(0, LEVELS - 1),
)
offsets = st.dictionaries(partitions, st.integers(0, 2**60))
# The offset at which a partition stands, and how many wait behind it.
backlogs = st.dictionaries(partitions, st.tuples(st.integers(0, 2**40), st.integers(0, 5_000)))


def start_and_end(backlog: dict[TopicPartition, tuple[int, int]]) -> tuple[Offsets, Offsets]:
    start = {partition: at for partition, (at, _) in backlog.items()}
    return start, {partition: at + waiting for partition, (at, waiting) in backlog.items()}


def reached(offsets: Offsets, **topic_ids: str) -> StreamOffset:
    return StreamOffset(offsets, {name.replace("_", "-"): topic_id for name, topic_id in topic_ids.items()})


@given(offsets)
def test_what_was_reached_survives_sparks_checkpoint(given_offsets: Offsets) -> None:
    there = StreamOffset(given_offsets, {"orders-0": "id"}, tasks=7, split=True, begun=given_offsets)
    read = StreamOffset.from_json(json.loads(json.dumps(there.to_json())), TopicNaming(LEVELS))
    assert (read, read.tasks, read.split, read.begun) == (there, 7, True, given_offsets)


@given(offsets)
def test_equal_offsets_are_the_same_text_or_spark_would_plan_empty_micro_batches(given_offsets: Offsets) -> None:
    ids = {"orders-1": "b", "orders-0": "a"}
    backwards = StreamOffset(dict(reversed(given_offsets.items())), dict(reversed(ids.items())))
    assert json.dumps(backwards.to_json()) == json.dumps(StreamOffset(given_offsets, ids).to_json())


def test_a_partition_that_is_new_has_no_range_until_its_start_is_in_the_checkpoint() -> None:
    old, new = TopicPartition("orders", partition=0), TopicPartition("orders", partition=1)
    assert ranges(reached({old: 2}), reached({old: 5, new: 0})) == [Range(old, 2, 5)]
    assert ranges(reached({old: 5, new: 0}), reached({old: 5, new: 4})) == [Range(new, 0, 4)]


def test_a_topic_that_was_created_again_is_read_from_its_first_offset() -> None:
    at = TopicPartition("orders", partition=0)
    before = reached({at: 5}, orders_0="first")
    assert ranges(before, reached({at: 9}, orders_0="second")) == [Range(at, 0, 9)]
    assert ranges(before, reached({at: 9}, orders_0="first")) == [Range(at, 5, 9)]
    # Old brokers give topics no id; then an end before the start tells.
    assert ranges(reached({at: 5}), reached({at: 3})) == [Range(at, 0, 3)]


def one_range(records: int) -> list[Range]:
    return [Range(TopicPartition("orders", partition=0), 0, records)]


def short_ranges(count: int) -> list[Range]:
    return [Range(TopicPartition("orders", partition=1 + number), 0, 1) for number in range(count)]


@given(backlogs, st.integers(1, 8))
def test_packing_splits_no_range_and_loses_none(backlog: dict[TopicPartition, tuple[int, int]], tasks: int) -> None:
    wanted = ranges(*map(reached, start_and_end(backlog)))
    groups = pack(wanted, tasks)
    assert sorted(item for group in groups for item in group) == wanted
    assert len(groups) == min(tasks, len(wanted))


@given(backlogs, st.integers(1, 8))
def test_groups_differ_by_no_more_than_their_longest_range(
    backlog: dict[TopicPartition, tuple[int, int]], tasks: int
) -> None:
    groups = pack(ranges(*map(reached, start_and_end(backlog))), tasks)
    costs = [[item.length + RECORDS_OF_A_RANGE for item in group] for group in groups]
    if len(costs) == tasks:
        least = min(map(sum, costs))
        assert all(sum(group) - max(group) <= least for group in costs)


def test_thousands_of_short_ranges_do_not_share_one_task_because_another_has_a_long_one() -> None:
    long, short = [Range(TopicPartition("orders", partition=0), 0, 100_000)], short_ranges(999)
    assert all(100 < len(group) < 900 for group in pack(long + short, 2))


def test_a_range_is_sent_to_a_task_in_no_more_memory_however_long_it_is() -> None:
    longest = Range(TopicPartition("orders", partition=0), 0, 2**40)
    assert len(pickle.dumps(longest)) < 1_000


def test_a_small_micro_batch_is_one_task_and_a_large_one_more_than_the_cluster_has_cores() -> None:
    options = TaskOptions()
    assert options.count(one_range(1_000), cores=2) == 1
    assert options.count(one_range(1_001), cores=2) == 2
    assert options.count(one_range(10_000_000), cores=2) == 100


def test_few_records_are_read_by_all_cores_if_they_are_known_to_take_long() -> None:
    options = TaskOptions()
    assert options.count(one_range(600), cores=3) == 1
    assert options.count(one_range(600), cores=3, slow=True) == 3
    assert TaskOptions(least=2).count(one_range(600), cores=3, slow=True) == 2


def test_few_records_of_many_partitions_are_read_by_all_cores() -> None:
    assert TaskOptions().count(short_ranges(RANGES_FOR_ONE), cores=8) == 1
    assert TaskOptions().count(short_ranges(RANGES_FOR_ONE + 1), cores=8) == 8
    assert TaskOptions(least=2).count(short_ranges(999), cores=8) == 2


def test_the_user_says_how_many_tasks_there_are_at_least_and_how_many_records_one_has_at_most() -> None:
    assert TaskOptions(least=7).count(one_range(10), cores=2) == 7
    assert TaskOptions(least=7).count(one_range(10_000_000), cores=2) == 100
    assert TaskOptions(least=1).count(one_range(50_000), cores=2) == 1
    assert TaskOptions(most_records=100).count(one_range(1_001), cores=2) == 11


@given(backlogs, st.integers(1, 20_000), st.integers(1, 8))
def test_only_a_partition_that_is_longer_makes_a_task_longer_than_the_user_says(
    backlog: dict[TopicPartition, tuple[int, int]], most: int, cores: int
) -> None:
    wanted = ranges(*map(reached, start_and_end(backlog)))
    groups = pack(wanted, TaskOptions(most_records=most).count(wanted, cores))
    assert all(len(group) == 1 or sum(item.length for item in group) <= most for group in groups)


@given(backlogs, st.integers(1, 50))
def test_cut_ranges_have_equal_tasks_whatever_the_partitions_and_lose_nothing(
    backlog: dict[TopicPartition, tuple[int, int]], tasks: int
) -> None:
    wanted = ranges(*map(reached, start_and_end(backlog)))
    groups = cut(wanted, tasks)
    total = sum(item.length for item in wanted)
    assert len(groups) <= tasks
    assert all(0 < sum(item.length for item in group) <= -(-total // tasks) for group in groups)
    pieces = sorted(piece for group in groups for piece in group)
    joined: list[Range] = []
    for piece in pieces:
        if joined and joined[-1].partition == piece.partition and joined[-1].end == piece.start:
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    assert joined == wanted
    levels = [piece.partition.level for group in groups for piece in group]
    assert levels == sorted(levels, reverse=True)


@given(offsets, st.dictionaries(st.sampled_from(["orders", "clicks"]), st.integers(0, 5)))
def test_a_checkpoint_of_topics_without_levels_can_be_read_under_other_priorities(
    given_offsets: Offsets, priorities: dict[str, int]
) -> None:
    first, later = TopicNaming(None, {"orders": 1}), TopicNaming(None, priorities)
    there = StreamOffset({first.partition(at.topic, at.partition, 0): of for at, of in given_offsets.items()}, {})
    form = json.loads(json.dumps(there.to_json()))

    replayed = StreamOffset.from_json(form, naming_of(form, later))
    assert replayed == there
    assert {kafka_topic(at) for at in replayed.offsets} == {at.topic for at in given_offsets}
    moved = StreamOffset.from_json(form, later).offsets
    assert {(at.topic, at.partition): of for at, of in moved.items()} == {
        (at.topic, at.partition): of for at, of in there.offsets.items()
    }
    assert all(at.level == priorities.get(at.topic, 0) for at in moved)


def test_a_checkpoint_of_topics_with_levels_is_not_read_as_one_without() -> None:
    with_levels = StreamOffset({TopicPartition("orders", partition=0, level=1): 5}, {}).to_json()
    without = StreamOffset({PlainPartition("orders", partition=0): 5}, {}).to_json()
    with pytest.raises(ConfigError, match="The checkpoint is for a query whose topics have levels, but those of this"):
        StreamOffset.from_json(with_levels, TopicNaming(None))
    with pytest.raises(ConfigError, match="whose topics have no levels, but those of this query have levels"):
        StreamOffset.from_json(without, TopicNaming(2))
