"""Partitions that take turns at the fetch: floods beside quiet ones, and all that happens while one is kept apart."""

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway.core.levels.naming import level_topic
from headway.kafka.binding.capi import SideQueue
from headway.kafka.consumer.fetch_turns import FetchTurns
from headway.kafka.consumer.membership import Membership
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord, TopicPartition
from tests.contract.conftest import PARTITIONS, Cluster

EAGER = {"partition.assignment.strategy": "range"}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER_PROTOCOL = {"group.protocol": "consumer", "heartbeat.interval.ms": None, "session.timeout.ms": None}
PROTOCOLS = pytest.mark.parametrize(
    "settings", [EAGER, COOPERATIVE, CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"]
)
FLOODED = range(PARTITIONS - 1)
QUIET = PARTITIONS - 1
FLOOD = 3000  # records of 1 KB in each flooded partition; librdkafka holds about 1000
HANDLED_WITHIN = 0.005  # seconds for the records of a poll: at full speed nobody is kept apart
SOON = 1.0  # seconds; in the order of fetching it would take three and more


def produce(cluster: Cluster, topic: str, partition: int, count: int, size: int = 1000) -> None:
    producer = cluster.plain_producer()
    for _ in range(count):
        producer.produce(level_topic(topic, 0), b"x" * size, partition=partition)
    assert producer.flush(30) == 0


class Reader:
    """A member that works on its records, and notes what it was handed."""

    def __init__(self, cluster: Cluster, topic: str, settings: dict[str, Any] | None = None) -> None:
        own = {"levels": 1, "max.poll.records": 20, "queued.max.messages.kbytes": 256, "enable.auto.commit": True}
        config = cluster.consumer_config(topic) | own | (settings or {})
        self.consumer = PriorityConsumer({key: value for key, value in config.items() if value is not None})
        self.consumer.subscribe(topic)
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.topics: set[str] = set()

    def poll(self) -> list[ConsumerRecord]:
        records = self.consumer.poll(0.05)
        for record in records:
            self.topics.add(record.topic)
            self.offsets[record.partition].append(record.offset)
        if records:
            threading.Event().wait(HANDLED_WITHIN)
        return records

    def poll_until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            self.poll()

    def poll_for(self, partition: int, count: int, seconds: float = 60) -> None:
        """Poll until so many records of a partition were handed out."""
        self.poll_until(lambda: len(self.offsets[partition]) >= count, seconds)

    def keep_apart(self) -> None:
        """Poll until flooded partitions have long been kept apart."""
        self.poll_until(lambda: all(len(self.offsets[partition]) > 200 for partition in FLOODED))


@contextmanager
def reader(cluster: Cluster, topic: str, settings: dict[str, Any] | None = None) -> Iterator[Reader]:
    made = Reader(cluster, topic, settings)
    with made.consumer:
        yield made


@pytest.fixture
def flooded(cluster: Cluster) -> str:
    """A topic with a flood in all partitions but one."""
    topic = cluster.topic(1)
    for partition in FLOODED:
        produce(cluster, topic, partition, FLOOD)
    return topic


def at(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition=partition, level=0)


@pytest.mark.quick("kafka")
def test_a_record_of_a_quiet_partition_does_not_wait_behind_floods(cluster: Cluster, flooded: str) -> None:
    with reader(cluster, flooded) as member:
        member.keep_apart()
        for number in range(1, 6):
            produce(cluster, flooded, QUIET, 1)
            member.poll_for(QUIET, number, SOON)
        member.poll_until(lambda: all(len(member.offsets[partition]) == FLOOD for partition in FLOODED))
        assert all(member.offsets[partition] == list(range(FLOOD)) for partition in FLOODED)


def test_a_record_of_a_quiet_topic_does_not_wait_behind_a_flooded_one(cluster: Cluster, flooded: str) -> None:
    quiet = cluster.topic(1)
    with reader(cluster, flooded) as member:
        member.consumer.subscribe([flooded, quiet])
        member.keep_apart()
        produce(cluster, quiet, 0, 1)
        member.poll_until(lambda: quiet in member.topics, SOON)


def test_flooded_partitions_take_turns(cluster: Cluster, flooded: str) -> None:
    with reader(cluster, flooded) as member:
        member.keep_apart()
        counts = [len(member.offsets[partition]) for partition in FLOODED]
        member.poll_until(lambda: sum(map(len, member.offsets.values())) >= sum(counts) + 1500)
        assert min(len(member.offsets[partition]) - counts[partition] for partition in FLOODED) > 250


def test_a_seek_amid_a_flood_drops_what_was_fetched_before(cluster: Cluster, flooded: str) -> None:
    with reader(cluster, flooded) as member:
        member.keep_apart()
        for offset in (2900, 5, 1000):
            member.consumer.seek(at(flooded, 0), offset)
            assert member.consumer.position(at(flooded, 0)) == offset
            del member.offsets[0]
            member.poll_for(0, 50)
            assert member.offsets[0] == list(range(offset, offset + len(member.offsets[0])))


def test_what_arrives_at_once_after_a_seek_keeps_its_order(
    cluster: Cluster, flooded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = FetchTurns.drop

    def drop_late(turns: FetchTurns, partition: TopicPartition) -> None:
        threading.Event().wait(0.3)  # a busy machine: Kafka has answered before the fetched records are dropped
        drop(turns, partition)

    monkeypatch.setattr(FetchTurns, "drop", drop_late)
    test_a_seek_amid_a_flood_drops_what_was_fetched_before(cluster, flooded)


def test_a_flooded_partition_that_is_paused_gives_nothing_and_then_what_is_next(cluster: Cluster, flooded: str) -> None:
    with reader(cluster, flooded) as member:
        member.keep_apart()
        for _ in range(3):
            member.consumer.pause([at(flooded, 0)])
            had = len(member.offsets[0])
            member.poll_for(1, len(member.offsets[1]) + 100)
            assert len(member.offsets[0]) == had == member.consumer.position(at(flooded, 0))
            member.consumer.resume([at(flooded, 0)])
            member.poll_for(0, had + 100)
        assert member.offsets[0] == list(range(len(member.offsets[0])))


def test_commits_stop_before_what_waits_at_the_fetch(cluster: Cluster, flooded: str) -> None:
    with reader(cluster, flooded) as member:
        member.keep_apart()
        member.consumer.commit()
        committed = member.consumer.committed([at(flooded, partition) for partition in FLOODED])
        assert [committed[at(flooded, each)] for each in FLOODED] == [len(member.offsets[each]) for each in FLOODED]
    with reader(cluster, flooded) as other:
        other.poll_until(lambda: all(other.offsets[partition] for partition in FLOODED))
        assert all(other.offsets[each][0] == len(member.offsets[each]) for each in FLOODED)


@pytest.mark.quick("mock")
def test_a_member_leaves_and_joins_again_while_partitions_are_kept_apart(cluster: Cluster, flooded: str) -> None:
    with reader(cluster, flooded) as member:
        for _ in range(2):
            member.keep_apart()
            member.consumer.unsubscribe()
            member.consumer.subscribe(flooded)
        member.poll_until(lambda: all(len(member.offsets[partition]) == FLOOD for partition in FLOODED))
        assert all(member.offsets[partition] == list(range(FLOOD)) for partition in FLOODED)


@pytest.mark.slow
@pytest.mark.kafka
@PROTOCOLS
def test_flooded_partitions_that_change_hands_lose_and_double_nothing(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic(1)
    for partition in range(PARTITIONS):
        produce(kafka_cluster, topic, partition, FLOOD)
    with reader(kafka_cluster, topic, settings) as member:
        member.poll_until(lambda: all(len(member.offsets[partition]) > 200 for partition in range(PARTITIONS)))
        for _ in range(2):
            with reader(kafka_cluster, topic, settings) as other:
                deadline = time.monotonic() + 60
                while sum(map(len, other.offsets.values())) < 500:
                    assert time.monotonic() < deadline
                    member.poll()
                    other.poll()
                helping = threading.Thread(target=other.consumer.close)
                helping.start()
                while helping.is_alive():
                    member.poll()
                for partition, offsets in other.offsets.items():
                    member.offsets[partition] += offsets
        member.poll_until(lambda: sum(map(len, member.offsets.values())) >= PARTITIONS * FLOOD)
        assert all(sorted(member.offsets[each]) == list(range(FLOOD)) for each in range(PARTITIONS))


@pytest.mark.slow
@pytest.mark.kafka
def test_what_does_not_fit_of_many_floods_comes_again(kafka_cluster: Cluster) -> None:
    topic, partitions, count = f"many-{uuid.uuid4().hex[:8]}", 40, 400
    admin = AdminClient(kafka_cluster.config({"log_level": 0}))
    admin.create_topics([NewTopic(level_topic(topic, 0), partitions, 1)])[level_topic(topic, 0)].result(30)
    for partition in range(partitions):
        produce(kafka_cluster, topic, partition, count)
    settings = {"queued.max.messages.kbytes": 64, "max.poll.records": 100}
    with reader(kafka_cluster, topic, settings) as member:
        member.poll_until(lambda: sum(map(len, member.offsets.values())) >= partitions * count)
        assert all(member.offsets[each] == list(range(count)) for each in range(partitions))


@pytest.mark.slow
@pytest.mark.kafka
def test_a_partition_is_diverted_before_its_surplus_is_given_back(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise librdkafka would fetch a megabyte of each flooded partition for a queue that is full."""
    topic, partitions = f"many-{uuid.uuid4().hex[:8]}", 40
    admin = AdminClient(kafka_cluster.config({"log_level": 0}))
    admin.create_topics([NewTopic(level_topic(topic, 0), partitions, 1)])[level_topic(topic, 0)].result(30)
    for partition in range(partitions):
        produce(kafka_cluster, topic, partition, 400)
    diverted, given_back = set[int](), list[int]()
    collect, read_from = SideQueue.collect, Membership.read_from

    def note_collect(queue: SideQueue, partition: tuple[str, int]) -> None:
        diverted.add(partition[1])
        collect(queue, partition)

    def note_seek(membership: Membership, partition: TopicPartition, offset: int) -> None:
        given_back.append(partition.partition)
        assert partition.partition in diverted
        read_from(membership, partition, offset)

    monkeypatch.setattr(SideQueue, "collect", note_collect)
    monkeypatch.setattr(Membership, "read_from", note_seek)
    with reader(kafka_cluster, topic, {"queued.max.messages.kbytes": 64, "max.poll.records": 100}) as member:
        member.poll_until(lambda: sum(map(len, member.offsets.values())) >= partitions * 200)
    assert len(given_back) >= 10
