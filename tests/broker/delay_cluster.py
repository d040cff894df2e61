"""Schedulers, relays and targets on a real broker, for the tests of delayed delivery."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Relay, Scheduler
from headway.core.delay.ladder import Ladder
from headway.delay.pending import Pending, read_pending
from headway.delay.topic_names import TopicNames
from headway.delay.topics import create_topics
from headway.records.record_types import Header

ROOT = Path(__file__).parents[2]
LADDER = Ladder((1000, 2000, 4000))
QUICK: dict[str, Any] = {
    "session.timeout.ms": 1500,
    "heartbeat.interval.ms": 200,
    "transaction.timeout.ms": 3000,
}

# One that comes again is let in when the one that was killed has been missed, by default 9 s later.
MISSED_SOON = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "300"}


class DelayCluster:
    """One scheduler name of its own on a broker, with a target topic."""

    def __init__(self, bootstrap_servers: str, partitions: int = 2) -> None:
        self.config: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
        self.name = f"delay-{uuid.uuid4().hex[:8]}"
        self.names = TopicNames(self.name)
        self.target = f"target-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"log_level": 0, **self.config})
        self.create_target(self.target)
        create_topics(self.config, self.name, LADDER, partitions)

    def create_target(self, topic: str, partitions: int = 2, settings: Mapping[str, str] | None = None) -> None:
        """A topic that brokers stamp."""
        config = {"message.timestamp.type": "LogAppendTime", **(settings or {})}
        self.admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(30)

    def scheduler(self) -> Scheduler:
        """A scheduler of this name."""
        return Scheduler(self.config, name=self.name)

    def relay(self, **options: Any) -> AbstractContextManager[Relay]:
        """A relay in a thread."""
        unhurried = {"session.timeout.ms": 45_000}  # it leaves by itself: a pause of the machine need not expel it
        return Relay({**self.config, **QUICK, **unhurried}, name=self.name, **options).running()

    def relay_process(self, stderr: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """A relay that can be killed."""
        settings = [f"-X{key}={value}" for key, value in QUICK.items()]
        command = [
            sys.executable,
            "-c",
            "from headway.cli import main; main()",
            "relay",
            "--name",
            self.name,
            *settings,
        ]
        servers = ["--bootstrap-servers", self.config["bootstrap.servers"]]
        return subprocess.Popen([*command, *servers], stderr=stderr)

    def read(self, topic: str | None = None, isolation: str = "read_committed") -> list[Any]:
        """All that a topic holds now, in the order of its partitions."""
        topic = topic or self.target
        own = {"group.id": "looks", "isolation.level": isolation, "enable.partition.eof": True}
        # An end is only told when nothing came for so long: half a second by default.
        consumer = ck.Consumer({"log_level": 0, **self.config, **own, "fetch.wait.max.ms": 5})
        try:
            count = len(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            consumer.assign([ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in range(count)])
            found: list[Any] = []
            ended: set[int] = set()
            while len(ended) < count:
                for message in consumer.consume(1000, 0.1):
                    if message.error() is None:
                        found.append(message)
                    elif message.error().code() == ck.KafkaError._PARTITION_EOF:  # type: ignore[union-attr]
                        ended.add(message.partition() or 0)
            return found
        finally:
            consumer.close()

    def put(self, topic: str, key: bytes, value: bytes, headers: list[Header]) -> None:
        """Write what no client of ours would, or none so late."""
        producer = _plain_producer(tuple(self.config.items()))
        producer.produce(topic, value, key, partition=0, headers=headers)
        producer.flush()

    def pending(self) -> list[Pending]:
        """What is pending."""
        return list(read_pending(self.config, self.name))

    def first_offset(self, place: ck.TopicPartition) -> int:
        """The first offset that a partition still holds."""
        consumer = ck.Consumer({"log_level": 0, **self.config, "group.id": "looks"})
        try:
            return consumer.get_watermark_offsets(place, 10)[0]
        finally:
            consumer.close()

    def wait_for(self, count: int, topic: str | None = None, within: float = 60.0) -> list[Any]:
        """The records of a topic, once there are so many."""
        self._watch(topic or self.target, lambda found: len(found) >= count, within)
        return self.read(topic)

    def wait_for_keys(self, keys: Collection[bytes], within: float = 60.0) -> None:
        """Until the target holds a record of each key."""
        self._watch(self.target, lambda found: {message.key() for message in found} >= set(keys), within)

    def _watch(self, topic: str, is_enough: Callable[[list[Any]], bool], within: float) -> None:
        """Read a topic until enough has come.

        The same client reads on. To read the whole topic again and again with new ones costs the broker much more.
        """
        deadline = time.monotonic() + within
        consumer = ck.Consumer(
            {"log_level": 0, **self.config, "group.id": "looks", "isolation.level": "read_committed"}
        )
        try:
            while not (partitions := consumer.list_topics(topic, timeout=10).topics[topic].partitions):
                assert time.monotonic() < deadline, f"There is no topic {topic}."
                time.sleep(0.02)
            consumer.assign([ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in partitions])
            found: list[Any] = []
            while not is_enough(found):
                assert time.monotonic() < deadline, f"{len(found)} records have come, which is not enough."
                found += [message for message in consumer.consume(100, 0.02) if message.error() is None]
        finally:
            consumer.close()

    def dead_letters(self, count: int) -> list[dict[str, bytes]]:
        """The headers of the dead letters, once there are so many."""
        return [dict(message.headers() or ()) for message in self.wait_for(count, self.names.dead)]


@lru_cache(maxsize=2)
def _plain_producer(config: tuple[tuple[str, Any], ...]) -> ck.Producer:
    """Return the client that the tests of a process share: a new one sends its first record half a second late."""
    return ck.Producer({**dict(config), "log_level": 0, "enable.idempotence": True})


def wait_until(condition: Callable[[], Any], within: float = 60.0) -> Any:
    """What the condition gives as soon as it is true."""
    deadline = time.monotonic() + within
    while not (result := condition()):
        assert time.monotonic() < deadline, "It did not come true."
        time.sleep(0.02)
    return result
