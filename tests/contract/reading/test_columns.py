"""Columns that the C module takes from librdkafka have exactly what the messages of the same records have."""

import random
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from headway.errors import ClosedError, KafkaError
from headway.kafka.binding.columns import IS_COMPILED, ColumnQueue, RecordRun
from headway.kafka.reading.arrow_columns import columns_of
from headway.kafka.reading.range_reader import Range, RangeReader
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.records.record_types import TopicPartition
from tests.contract.conftest import PARTITIONS, Cluster

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="the C module that makes columns is not compiled")

Found = Iterator[tuple[TopicPartition, Sequence[ck.Message] | RecordRun]]


def some_bytes(chosen: random.Random) -> bytes | None:
    """Nothing, nothing but an empty field, some bytes or many."""
    return chosen.choice([None, b"", chosen.randbytes(1), chosen.randbytes(100), chosen.randbytes(3_000)])


def rows(found: Found) -> dict[TopicPartition, list[dict[str, Any]]]:
    by_partition: dict[TopicPartition, list[dict[str, Any]]] = defaultdict(list)
    for partition, records in found:
        batch = columns_of(records)
        batch.validate(full=True)
        by_partition[partition] += batch.to_pylist()
    return by_partition


def fill(producer: ck.Producer, topic: str, records: int, chosen: random.Random) -> None:
    for _ in range(records):
        producer.produce(
            f"{topic}-0",
            some_bytes(chosen),
            some_bytes(chosen),
            chosen.randrange(PARTITIONS),
            timestamp=chosen.choice([0, 1, 1_767_323_045_678]),
            headers=[(chosen.choice(string.ascii_letters), some_bytes(chosen))] * chosen.randrange(3),
        )
        producer.poll(0)


@pytest.mark.parametrize("seed", range(3))
def test_columns_and_messages_of_random_records_are_the_same(mock_cluster: Cluster, seed: int) -> None:
    chosen, topic, records = random.Random(seed), mock_cluster.topic(levels=1), 600
    with closing(ck.Producer(mock_cluster.config({"log_level": 0, "linger.ms": 5}))) as producer:
        fill(producer, topic, records, chosen)
        assert producer.flush(30) == 0
    with RangeReader(mock_cluster.config({})) as reader:
        ends = {at: reader_end(mock_cluster, topic, at) for at in range(PARTITIONS)}
        for _ in range(5):
            bounds = {at: sorted(chosen.choices(range(end + 1), k=2)) for at, end in ends.items()}
            wanted = [Range(TopicPartition(topic, partition=at), *each) for at, each in bounds.items()]
            batch = chosen.choice([1, 7, 5_000])
            assert rows(reader.read_columns(wanted, batch)) == rows(reader.read(wanted, batch))


def reader_end(cluster: Cluster, topic: str, partition: int) -> int:
    with closing(ck.Consumer(cluster.config({"log_level": 0, "group.id": "ends"}))) as consumer:
        _, end = consumer.get_watermark_offsets(ck.TopicPartition(f"{topic}-0", partition), timeout=20)
        return end


@pytest.mark.kafka
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_compressed_records_and_tombstones_are_the_same(kafka_cluster: Cluster, isolation: str) -> None:
    chosen, topic = random.Random(isolation), kafka_cluster.topic(levels=1)
    settings = kafka_cluster.config({"transactional.id": topic, "compression.type": "zstd"})
    with closing(ck.Producer({"log_level": 0, **settings})) as producer:
        producer.init_transactions()
        for commits in (True, False, False, True, False):
            producer.begin_transaction()
            fill(producer, topic, 100, chosen)
            producer.flush(30)
            (producer.commit_transaction if commits else producer.abort_transaction)()
    wanted = [
        Range(TopicPartition(topic, partition=at), 0, reader_end(kafka_cluster, topic, at)) for at in range(PARTITIONS)
    ]
    with RangeReader(kafka_cluster.config({"isolation.level": isolation})) as reader:
        columns, messages = rows(reader.read_columns(wanted)), rows(reader.read(wanted))
    assert columns == messages
    assert sum(map(len, columns.values())) == (200 if isolation == "read_committed" else 500)


@pytest.mark.parametrize("read", [RangeReader.read, RangeReader.read_columns])
def test_a_log_that_ends_before_the_range_is_the_same_error(mock_cluster: Cluster, read: Callable[..., Found]) -> None:
    topic = mock_cluster.topic(levels=1)
    with closing(ck.Producer(mock_cluster.config({"log_level": 0}))) as producer:
        producer.produce(f"{topic}-0", b"value", b"key", 0)
        assert producer.flush(30) == 0
    with (
        RangeReader(mock_cluster.config({})) as reader,
        pytest.raises(KafkaError, match=r"no longer holds all offsets from 1 to before 5 \(the log ends at offset 1\)"),
    ):
        list(read(reader, [Range(TopicPartition(topic, partition=0), 0, 5)]))


def test_arrow_owns_the_memory_of_columns(mock_cluster: Cluster) -> None:
    topic = mock_cluster.topic(levels=1)
    with closing(ck.Producer(mock_cluster.config({"log_level": 0}))) as producer:
        producer.produce(f"{topic}-0", b"value", b"key", 0)
        assert producer.flush(30) == 0
    with RangeReader(mock_cluster.config({})) as reader:
        [(_, run)] = reader.read_columns([Range(TopicPartition(topic, partition=0), 0, 1)])
        batch = columns_of(run)
        del run
    assert batch.select(["key", "value", "offset"]).to_pylist() == [{"key": b"key", "value": b"value", "offset": 0}]
    assert batch.schema.types == [pa.binary(), pa.binary(), pa.int64(), pa.int64(), pa.int32()]


def test_a_queue_is_not_used_after_it_or_its_consumer_is_closed(mock_cluster: Cluster) -> None:
    consumer = unjoined_consumer(mock_cluster.config({}))
    closed, left = ColumnQueue(consumer), ColumnQueue(consumer)
    closed.close()
    with pytest.raises(ValueError, match="address is 0"):
        closed.take(1, 0)
    consumer.close()
    with pytest.raises(ClosedError):
        left.take(1, 0)
    left.close()
