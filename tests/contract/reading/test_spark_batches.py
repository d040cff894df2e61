"""The Arrow batches that a task of Spark reads from a real broker, and how many partitions can be asked for."""

import logging
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing

import confluent_kafka as ck
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headway.kafka.admin import Admin
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.range_reader import MOST_TOGETHER
from headway.records.record_types import TopicPartition
from headway.spark.source.batch_reader import BatchReader
from headway.spark.source.options import parse
from headway.spark.source.read_task import ENOUGH_BYTES, ENOUGH_RECORDS
from headway.spark.source.schema import schema
from tests.contract.conftest import PARTITIONS, Cluster

pytestmark = pytest.mark.kafka

TOO_LATE_MS = 2**60
LEVELS = 2


def send(
    cluster: Cluster, topic: str, values: Iterable[tuple[int, int, bytes]], stamp: Callable[[int, int], int]
) -> None:
    """Send values, each with its level and partition, which tell its timestamp."""
    with closing(ck.Producer({"log_level": 0, "bootstrap.servers": cluster.bootstrap_servers})) as producer:
        for level, partition, value in values:
            key = b"k" + value[:9]
            producer.produce(f"{topic}-{level}", value, key, partition, timestamp=stamp(level, partition))
        assert producer.flush(30) == 0


def stamp(level: int, partition: int) -> int:
    return 1_767_323_045_678 + 10 * level + partition


def batches(cluster: Cluster, topic: str, **options: str) -> list[pa.RecordBatch]:
    """Return what one task reads."""
    address = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "levels": str(LEVELS)}
    given = parse({**address, "minPartitions": "1", **options})
    reader = BatchReader(given, schema(include_headers=False))
    [task] = reader.partitions()
    return list(reader.read(task))


def test_records_of_short_ranges_share_a_batch_and_each_has_its_own_columns(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=LEVELS)
    sent = [
        (level, partition, b"%d" % number)
        for level in range(LEVELS)
        for partition in range(PARTITIONS)
        for number in range(1 + partition)
    ]
    send(kafka_cluster, topic, sent, stamp)

    [batch] = batches(kafka_cluster, topic)

    rows = batch.to_pylist()
    assert sorted((row["level"], row["partition"], row["value"]) for row in rows) == sent
    for row in rows:
        assert row["offset"] == int(row["value"])
        assert (row["topic"], row["key"], row["timestampType"]) == (topic, b"k" + row["value"], 0)
        assert round(row["timestamp"].timestamp() * 1000) == stamp(row["level"], row["partition"])
    places = [(row["level"], row["partition"]) for row in rows]
    for place in set(places):
        values = [int(row["value"]) for row, at in zip(rows, places, strict=True) if at == place]
        assert values == sorted(values)


@pytest.mark.parametrize(("size", "count"), [(1, ENOUGH_RECORDS), (ENOUGH_BYTES // 4, 9)])
def test_a_batch_gets_no_other_partitions_records_once_it_has_enough(
    kafka_cluster: Cluster, size: int, count: int
) -> None:
    topic = kafka_cluster.topic(levels=LEVELS)
    send(kafka_cluster, topic, [(0, at, bytes(size)) for at in range(PARTITIONS) for _ in range(count)], stamp)
    found = batches(kafka_cluster, topic)
    assert sum(batch.num_rows for batch in found) == PARTITIONS * count
    for batch in found:
        places = batch.column("partition").to_pylist()
        before = places.index(places[-1])
        assert before < ENOUGH_RECORDS
        assert before * size < ENOUGH_BYTES


def test_of_partitions_in_one_batch_those_are_named_whose_timestamps_spark_does_not_have(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"untimed-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"log_level": 0, "bootstrap.servers": kafka_cluster.bootstrap_servers})
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}  # as before Kafka 4
    names = [NewTopic(f"{topic}-{level}", PARTITIONS, config=any_time) for level in range(LEVELS)]
    for made in admin.create_topics(names).values():
        made.result(30)
    send(kafka_cluster, topic, [(0, 0, b"1"), (0, 0, b"2"), (1, 1, b"3")], stamp)
    send(kafka_cluster, topic, [(1, 1, b"4"), (1, 1, b"5")], lambda *_: TOO_LATE_MS)

    with caplog.at_level(logging.WARNING):
        [batch] = batches(kafka_cluster, topic)

    assert sorted(row["value"] for row in batch.to_pylist() if row["timestamp"] is None) == [b"4", b"5"]
    [told] = caplog.messages
    assert told.startswith(f"In partition 1 of the Kafka topic {topic}-1 2 records have a timestamp outside")
    assert f"at offset 1, has {TOO_LATE_MS}" in told


@pytest.mark.slow
def test_of_more_partitions_than_are_read_together_all_are_listed_and_read(kafka_cluster: Cluster) -> None:
    topic, partitions = f"wide-{uuid.uuid4().hex[:8]}", MOST_TOGETHER + 20
    address = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    Admin(address).create([f"{topic}-0"], partitions)
    send(kafka_cluster, topic, [(0, number, b"%d" % number) for number in range(partitions)], stamp)
    wanted = [TopicPartition(topic, partition=number) for number in range(partitions)]
    assert Catalog(address).ends(wanted) == dict.fromkeys(wanted, 1)
    rows = [row for batch in batches(kafka_cluster, topic, levels="1") for row in batch.to_pylist()]
    assert sorted((row["partition"], int(row["value"])) for row in rows) == [(at, at) for at in range(partitions)]
