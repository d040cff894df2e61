"""One Spark session for all tests, and level topics to read in it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession

from headway.broker import LocalBroker
from headway.kafka.binding.capi import await_online
from headway.kafka.reading.group_inspector import GroupInspector
from headway.spark import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a test again that Spark ended because a Python process took more than 10 s to start.

    A busy machine takes longer at times, and Spark has no setting for it.
    """
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["Python worker failed to connect back"]))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A quiet session on this machine."""
    session = local_session("headway tests", short_lived=True)
    yield session
    session.stop()
    # PySpark leaves its Java to end with this process, which then warns of it.
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


def _note_error(errors: dict[int, Any], number: int, error: Any, _: object) -> None:
    if error:
        errors[number] = error


def _new_producer(servers: str) -> Producer:
    return Producer({"log_level": 0, "bootstrap.servers": servers, "linger.ms": 1, "enable.idempotence": True})


@lru_cache(maxsize=2)
def _shared_producer(servers: str) -> Producer:
    """Return the client that the tests share: a new one sends its first record half a second late."""
    return _new_producer(servers)


@dataclass
class LevelTopics:
    """The level topics of one topic, which tests fill, cut off and extend."""

    servers: str
    topic: str
    levels: int = 3
    partitions: int = 2
    _admin: AdminClient = field(init=False)
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self._admin = AdminClient({"log_level": 0, "bootstrap.servers": self.servers})
        self._producer = _shared_producer(self.servers)
        self._create()

    def _create(self) -> None:
        self._done(self._admin.create_topics([NewTopic(name, self.partitions, 1) for name in self.kafka_topics]))
        self._await_metadata()

    @property
    def kafka_topics(self) -> list[str]:
        """The Kafka topics, lowest level first."""
        return [f"{self.topic}-{level}" for level in range(self.levels)]

    @property
    def options(self) -> dict[str, str]:
        """What every read of these topics needs."""
        return {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic, "levels": str(self.levels)}

    def send(self, level: int, values: Iterable[object], partition: int | None = None, **fields: Any) -> None:
        """Send one record per value to a partition, or to one after the other, and wait for delivery."""
        wanted = [
            (number % self.partitions if partition is None else partition, value) for number, value in enumerate(values)
        ]
        deadline = time.monotonic() + 30
        while wanted := self._refused(level, wanted, fields):
            assert time.monotonic() < deadline, wanted

    def _refused(
        self, level: int, wanted: list[tuple[int, object]], fields: dict[str, Any]
    ) -> list[tuple[int, object]]:
        """Send records; return those whose time Kafka refuses, as it does until a topic's new settings hold."""
        errors: dict[int, Any] = {}
        for number, (at, value) in enumerate(wanted):
            data = None if value is None else str(value).encode()
            note = partial(_note_error, errors, number)
            self._producer.produce(f"{self.topic}-{level}", data, partition=at, on_delivery=note, **fields)
        assert self._producer.flush(30) == 0
        assert [error for error in errors.values() if error.code() != KafkaError.INVALID_TIMESTAMP] == []
        return [wanted[number] for number in sorted(errors)]

    def add_partitions(self, partitions: int) -> None:
        """Let every level have so many partitions."""
        self.partitions = partitions
        self._done(self._admin.create_partitions([NewPartitions(name, partitions) for name in self.kafka_topics]))
        self._await_metadata()

    def cut_off(self, level: int, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        self._done(self._admin.delete_records([KafkaPartition(f"{self.topic}-{level}", partition, before)]))

    def delete(self) -> None:
        """Delete the topics."""
        self._done(self._admin.delete_topics(self.kafka_topics))

    def create_again(self) -> None:
        """Delete the topics and create them anew, under new ids; offsets begin at 0."""
        self.delete()
        # Clients that knew the old ones by their ids would ask for these for a while.
        self._producer = _new_producer(self.servers)
        self._create()

    def committed(self, group: str) -> dict[tuple[int, int], int]:
        """The offsets that the level groups of a group have committed, by level and partition."""
        with ExitStack() as stack:
            return {
                (level, partition): offset
                for level in range(self.levels)
                for (_, partition), (offset, _) in self._commits(stack, f"{group}-{level}", level).items()
            }

    def _commits(self, stack: ExitStack, group: str, level: int) -> dict[Any, tuple[int, bytes]]:
        onlooker = stack.enter_context(GroupInspector({"bootstrap.servers": self.servers}, group))
        return onlooker.committed([(self.kafka_topics[level], partition) for partition in range(self.partitions)])

    def _await_metadata(self) -> None:
        """The broker answers for what the controller has done a moment later, and takes records again later."""
        for name in self.kafka_topics:
            while len(self._producer.list_topics(name, timeout=30).topics[name].partitions) < self.partitions:
                pass
            await_online(self._producer, [(name, number) for number in range(self.partitions)], 30)

    def _done(self, futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(30)


@pytest.fixture
def orders(headway_broker: LocalBroker, headway_topic: str) -> LevelTopics:
    """A topic with three levels of two partitions each."""
    return LevelTopics(headway_broker.bootstrap_servers, headway_topic)


@pytest.fixture
def level_topics() -> type[LevelTopics]:
    """For tests with topics of other shapes, or on another broker."""
    return LevelTopics


@dataclass
class MicroBatches:
    """A `foreachBatch` function that notes the rows of each micro-batch, and then does what the test wants."""

    then: Callable[[int], None] = lambda number: None
    rows: dict[int, list[Row]] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.rows[number] = frame.orderBy("level", "partition", "offset").collect()
        self.then(number)

    def values(self, number: int, level: int | None = None) -> list[int]:
        """The values of a micro-batch as numbers, of one level or all, in order."""
        return sorted(int(row["value"]) for row in self.rows[number] if level in (None, row["level"]))

    def all_values(self) -> list[int]:
        """The values of all micro-batches in order."""
        return sorted(value for number in self.rows for value in self.values(number))


@pytest.fixture
def micro_batches() -> type[MicroBatches]:
    """For tests that look at what each micro-batch reads."""
    return MicroBatches
