"""The plans of a query whose topics change beneath it: created again, cut short, or with a transaction open."""

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headway.errors import ConfigError, KafkaError
from headway.kafka.reading.catalog import TopicLevels
from headway.kafka.reading.range_reader import Offsets
from headway.kafka.reading.topic_naming import TopicNaming
from headway.records.record_types import TopicPartition
from headway.spark.source import batch_planner
from headway.spark.source.options import parse
from headway.spark.source.schema import schema
from headway.spark.source.stream_reader import StreamReader

LEVELS = 3
Planned = list[tuple[int, int, int]]  # the level, the first offset and the end of each range


class Topics:
    """A catalog of one partition at each of three levels, as a test sets it."""

    ids: ClassVar[dict[str, str]] = {}
    committed: ClassVar[dict[int, int]] = {}
    written_to: ClassVar[dict[int, int]] = {}

    def __init__(self, *_: Any) -> None:
        pass

    def find(self, topics: Iterable[str], naming: TopicNaming) -> TopicLevels:
        partitions = [TopicPartition("orders", partition=0, level=level) for level in range(LEVELS)]
        return TopicLevels(partitions, dict(Topics.ids))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {name: Topics.ids[name] for name in topics}

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        return {each: Topics.committed[each.level] for each in partitions}

    def written(self, partitions: Collection[TopicPartition]) -> Offsets:
        return {each: Topics.written_to.get(each.level, Topics.committed[each.level]) for each in partitions}


@pytest.fixture(autouse=True)
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_planner, "Catalog", Topics)
    monkeypatch.setattr(batch_planner, "IDLE_PAUSE_S", 0)
    monkeypatch.setattr(Topics, "ids", {f"orders-{level}": "first" for level in range(LEVELS)})
    monkeypatch.setattr(Topics, "committed", dict.fromkeys(range(LEVELS), 10))
    monkeypatch.setattr(Topics, "written_to", {})


def reader(**options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": "nowhere", "subscribe": "orders", "levels": str(LEVELS)}
    return StreamReader(parse({"startingOffsets": "earliest", **given, **options}), schema(include_headers=False))


def planned(by: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Planned:
    ranges = [item for task in by.partitions(start, end) for item in task.value]
    return sorted((item.partition.level, item.start, item.end) for item in ranges)


def all_that_is_there(by: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return by.latestOffset(start, ReadAllAvailable())


def test_beside_an_open_transaction_a_query_that_has_read_of_it_waits_and_reads_nothing_again() -> None:
    uncommitted = reader()
    reached = all_that_is_there(uncommitted, uncommitted.initialOffset())
    Topics.committed, Topics.written_to = {**Topics.committed, 1: 6}, {1: 12}
    committed = reader()
    assert all_that_is_there(committed, reached) == reached
    Topics.committed[1], Topics.written_to = 12, {}
    then = all_that_is_there(committed, reached)
    assert planned(committed, reached, then) == [(1, 10, 12)]


@pytest.mark.parametrize("fails", [True, False])
def test_when_a_leader_lacks_the_last_records_a_query_says_so_and_goes_on_behind_what_is_there(fails: bool) -> None:
    by = reader(failOnDataLoss=str(fails).lower())
    reached = all_that_is_there(by, by.initialOffset())
    Topics.committed[1] = 6
    if fails:
        with pytest.raises(KafkaError, match="up to offset 10, but Kafka only holds offsets before 6: a broker"):
            all_that_is_there(by, reached)
        return
    shorter = all_that_is_there(by, reached)
    assert planned(by, reached, shorter) == []
    Topics.committed[1] = 8
    assert planned(by, shorter, all_that_is_there(by, shorter)) == [(1, 6, 8)]


def test_kafka_is_not_asked_for_the_topics_of_a_micro_batch_that_was_planned_just_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Collection[str]] = []

    def noted(_: Topics, topics: Collection[str]) -> dict[str, str]:
        asked.append(topics)
        return dict(Topics.ids)

    monkeypatch.setattr(Topics, "topic_ids", noted)
    by = reader()
    start = by.initialOffset()
    end = all_that_is_there(by, start)
    planned(by, start, end)
    assert not asked
    planned(reader(), start, end)
    assert len(asked) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_micro_batch_that_comes_again_reads_nothing_of_a_topic_that_was_created_again(fails: bool) -> None:
    first = reader()
    start = first.initialOffset()
    end = all_that_is_there(first, start)
    assert planned(first, start, end) == [(0, 0, 10), (1, 0, 10), (2, 0, 10)]
    Topics.ids["orders-1"] = "second"
    again = reader(failOnDataLoss=str(fails).lower())
    if fails:
        with pytest.raises(KafkaError, match="orders-1 must be read again, but the topic was deleted and recreated"):
            planned(again, start, end)
    else:
        assert planned(again, start, end) == [(0, 0, 10), (2, 0, 10)]


@pytest.mark.parametrize("fails", [True, False])
def test_no_offset_of_a_topic_is_committed_to_another_one_that_was_created_under_its_name(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    committed: list[dict[int, int]] = []

    class Commits:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def commit(self, offsets: Offsets) -> None:
            if (done := {at.level: offset for at, offset in offsets.items()}) not in committed[-1:]:
                committed.append(done)

        def close(self) -> None:
            pass

    monkeypatch.setattr(batch_planner, "ExternalCommits", Commits)
    options = {"group.id": "billing", "failOnDataLoss": str(fails).lower()}
    first = reader(**options)
    reached = all_that_is_there(first, first.initialOffset())
    Topics.ids["orders-1"], Topics.committed[1] = "second", 50
    again = reader(**options)
    if fails:
        with pytest.raises(KafkaError, match="deleted and recreated"):
            all_that_is_there(again, reached)
    else:
        then = all_that_is_there(again, reached)
        assert planned(again, reached, then) == [(1, 0, 50)]
        all_that_is_there(again, then)
    assert committed[1] == {0: 10, 2: 10}
    assert committed[2:] == ([] if fails else [{0: 10, 1: 50, 2: 10}])


def test_a_query_does_not_begin_beyond_the_end() -> None:
    start = '{"orders": {"0": {"0": 10}, "1": {"0": -1}, "2": {"0": 11}}}'
    with pytest.raises(ConfigError, match="partition 0 of the Kafka topic orders-2 the offset 11, but the part"):
        reader(startingOffsets=start).initialOffset()
    Topics.written_to[2] = 11
    assert reader(startingOffsets=start).initialOffset()


def test_of_overdue_backlogs_that_were_found_together_the_highest_is_read_first() -> None:
    by = reader(policy="strict", maxRecordsPerTrigger="10", strictMaxWait="1ms")
    start = by.initialOffset()
    for level in (2, 1, 0):
        end = by.latestOffset(start, ReadMaxRows(10))
        assert planned(by, start, end) == [(level, 0, 10)]
        start = end


def test_what_waits_for_more_records_is_seen_waiting() -> None:
    by = reader(policy="strict", maxRecordsPerTrigger="1000", minRecordsPerTrigger="1000", strictMaxWait="1ms")
    start = by.initialOffset()
    seen = [all_that_is_there(by, start) for _ in range(2)]
    assert seen == [start, start]
    report = by.reportLatestOffset()
    assert report is not None
    assert set(report["oldestWaitSeconds"]) == {"0", "1", "2"}


@pytest.mark.parametrize("most", [10**10, 2**63 - 1])
def test_billions_of_records_are_a_bound_too(most: int) -> None:
    by = reader(policy="fair", maxRecordsPerTrigger=str(most), targetTriggerTime="1s")
    start = by.initialOffset()
    assert planned(by, start, by.latestOffset(start, by.getDefaultReadLimit())) == [(0, 0, 10), (1, 0, 10), (2, 0, 10)]
