"""Batches that unpack to much more than they take on disk, as Java's producer makes them. On a real Apache Kafka."""

import logging
import re
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from headway import ParallelConsumer, PriorityConsumer, TopicPartition
from headway.errors import FetchError, KafkaError
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.range_reader import Range, RangeReader
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import wait_for

pytestmark = pytest.mark.kafka

with warnings.catch_warnings(action="ignore"):
    from kafka import KafkaProducer  # type: ignore[import-untyped]

COUNT, SIZE = 220, 500_000  # 110 MB, more than librdkafka takes by default
LESS = {"receive.message.max.bytes": 60_000_000}
SENTENCE = r"Partition 0 of {topic} cannot be read beyond offset 0: the batch there cannot be decompressed \(.+\)\. "


@pytest.fixture(scope="module")
def topic(kafka_cluster: Cluster) -> str:
    """A level of a topic, of which one partition has such a batch and a record behind it."""
    topic = kafka_cluster.topic(levels=1)
    producer = KafkaProducer(
        bootstrap_servers=kafka_cluster.bootstrap_servers,
        compression_type="zstd",
        batch_size=200_000_000,
        linger_ms=20_000,
        max_request_size=300_000_000,
        enable_idempotence=False,
        acks=1,
    )
    with closing(producer):
        for _ in range(COUNT):
            producer.send(f"{topic}-0", b"a" * SIZE, partition=0)
        producer.flush()
        producer.send(f"{topic}-0", b"behind it", partition=0)
    return topic


def config(cluster: Cluster, **settings: object) -> dict[str, object]:
    return cluster.config({"auto.offset.reset": "earliest", **settings})


@pytest.mark.slow
def test_a_batch_that_unpacks_to_more_than_100_mb_is_read(kafka_cluster: Cluster, topic: str) -> None:
    settings = config(kafka_cluster, **{"group.id": f"{topic}-whole", "levels": 1, "max.poll.records": 500})
    found, deadline = 0, time.monotonic() + 60
    with closing(PriorityConsumer(settings)) as consumer:
        consumer.subscribe(topic)
        while found < COUNT + 1 and time.monotonic() < deadline:
            found += len(consumer.poll(0.5))
    assert found == COUNT + 1
    with RangeReader(kafka_cluster.config({})) as reader:
        at = TopicPartition(topic, partition=0)
        assert sum(len(records) for _, records in reader.read([Range(at, 0, COUNT)])) == COUNT


def test_beyond_the_setting_one_sentence_now_and_then_says_where_and_what_to_set(
    kafka_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    parallel = ParallelConsumer(config(kafka_cluster, **{"group.id": f"{topic}-less", **LESS}))
    parallel.subscribe(f"{topic}-0")
    with caplog.at_level(logging.WARNING, "headway"), parallel, ThreadPoolExecutor(1) as thread:
        ended = thread.submit(parallel.run, lambda record: None)
        wait_for(lambda: ended.done() or "cannot be decompressed" in caplog.text)
        time.sleep(2)  # librdkafka tries again twice a second
        parallel.close()
        ended.result()
    [said] = [line for line in caplog.messages if "fetch" in line]
    assert re.search(SENTENCE.format(topic=f"{topic}-0"), said)
    assert "receive.message.max.bytes=60000000, raise this setting" in said

    settings = config(kafka_cluster, **{"group.id": f"{topic}-lesser", "levels": 1, "max.poll.records": 9, **LESS})
    with closing(PriorityConsumer(settings)) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(FetchError, match=SENTENCE.format(topic=f"{topic}-0")):
            wait_for(lambda: consumer.poll(0.5))


def test_readers_without_a_group_say_so_too(kafka_cluster: Cluster, topic: str) -> None:
    sentence, less = SENTENCE.format(topic=f"{topic}-0"), kafka_cluster.config(dict(LESS))
    with RangeReader(less) as reader, pytest.raises(KafkaError, match=sentence):
        list(reader.read([Range(TopicPartition(topic, partition=0), 0, COUNT)]))
    admin = AdminClient(kafka_cluster.config({"log_level": 0}))
    with GroupInspector(less, f"{topic}-dead", admin) as inspector, pytest.raises(KafkaError, match=sentence):
        list(inspector.read((f"{topic}-0", 0), 0, COUNT))
