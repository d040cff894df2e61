"""The first micro-batch of a query, as Spark plans it: where it begins is not in its log, and asked for anew."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headway.errors import KafkaError
from headway.kafka.reading.catalog import TopicLevels
from headway.kafka.reading.range_reader import Offsets, Range
from headway.kafka.reading.topic_naming import TopicNaming
from headway.records.record_types import TopicPartition
from headway.spark.source import batch_planner
from headway.spark.source.options import parse
from headway.spark.source.schema import schema
from headway.spark.source.stream_offset import StreamOffset
from headway.spark.source.stream_reader import StreamReader

ORDERS = TopicPartition("orders", partition=0)
STARTS = ["latest", '{"orders": {"0": {"0": -1}}}', "2026-05-01T12:00:00Z"]


class GrowingTopic:
    """A catalog of one partition, which has a record more whenever its end is asked for."""

    first, end = 0, 1_000

    def __init__(self, *_: Any) -> None:
        pass

    def find(self, topics: Iterable[str], naming: TopicNaming) -> TopicLevels:
        return TopicLevels([ORDERS], {})

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, GrowingTopic.first)

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        GrowingTopic.end += 1
        return dict.fromkeys(partitions, GrowingTopic.end)

    def written(self, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, GrowingTopic.end)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {}

    def at(self, time_ms: int, partitions: Collection[TopicPartition]) -> Offsets:
        return self.ends(partitions)  # there is no record that late


@pytest.fixture(autouse=True)
def growing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_planner, "Catalog", GrowingTopic)
    monkeypatch.setattr(GrowingTopic, "first", 0)
    monkeypatch.setattr(GrowingTopic, "end", 1_000)


def reader(start: str) -> StreamReader:
    options = {"kafka.bootstrap.servers": "nowhere", "subscribe": "orders", "levels": "1", "startingOffsets": start}
    return StreamReader(parse(options), schema(include_headers=False))


def read(by: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
    return [item for task in by.partitions(start, end) for item in task.value]


def test_partitions_that_a_lagging_broker_does_not_list_are_not_lost_nor_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [ORDERS, TopicPartition("orders", partition=1)]
    listed = list(there)
    ids = {"orders-0": "id"}
    monkeypatch.setattr(GrowingTopic, "find", lambda *_: TopicLevels(list(listed), dict(ids)))
    query = reader("earliest")
    begin = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    for _ in range(2):
        listed[:] = there[:1]
        shorter = query.latestOffset(begin, ReadAllAvailable())
        assert [item.partition for item in read(query, begin, shorter)] == [ORDERS]
        listed[:] = there
        begin = query.latestOffset(shorter, ReadAllAvailable())
        second = read(query, shorter, begin)[1]
        assert second.length < 10
    listed[:] = there[:1]
    ids["orders-0"] = "of another topic"
    with pytest.raises(KafkaError, match="The query has read partition 1 of the Kafka topic orders-0"):
        query.latestOffset(begin, ReadAllAvailable())


@pytest.mark.parametrize("start", STARTS)
def test_it_reads_what_has_come_since_the_query_began_although_spark_asks_again_where_it_begins(start: str) -> None:
    query = reader(start)
    begin = query.initialOffset()
    [began] = StreamOffset.from_json(begin, TopicNaming(1)).offsets.values()
    end = query.latestOffset(begin, ReadAllAvailable())
    assert read(query, query.initialOffset(), end) == [Range(ORDERS, began, began + 1)]
    following = query.latestOffset(end, ReadAllAvailable())
    assert read(query, end, following) == [Range(ORDERS, began + 1, following["offsets"]["orders"]["0"]["0"])]


@pytest.mark.parametrize("start", ["earliest", *STARTS])
def test_a_restarted_query_reads_it_again_from_where_it_began_at_first(start: str) -> None:
    query = reader(start)
    begin = query.initialOffset()
    end = query.latestOffset(begin, ReadAllAvailable())
    before = read(query, begin, end)
    GrowingTopic.first = 5  # what was before has aged out
    restarted = reader(start)
    assert read(restarted, restarted.initialOffset(), end) == before


@pytest.mark.parametrize("start", STARTS)
def test_with_trigger_available_now_it_does_not_begin_behind_what_is_available(start: str) -> None:
    query = reader(start)
    query.prepareForTriggerAvailableNow()
    begin = query.initialOffset()
    end = query.latestOffset(begin, ReadAllAvailable())
    query.initialOffset()
    assert query.latestOffset(end, ReadAllAvailable())
