"""Schedulers, relays and targets on a real broker, for the tests of delayed delivery."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
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
        producer = ck.Producer({"log_level": 0, **self.config, "enable.idempotence": True})
        producer.produce(topic, value, key, partition=0, headers=headers)
        producer.flush()
        producer.close()

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
        found: list[Any] = wait_until(lambda: len(read := self.read(topic)) >= count and read, within)
        return found

    def wait_for_keys(self, keys: Collection[bytes], within: float = 60.0) -> None:
        """Until the target holds a record of each key."""
        wait_until(lambda: {message.key() for message in self.read()} >= set(keys), within)

    def dead_letters(self, count: int) -> list[dict[str, bytes]]:
        """The headers of the dead letters, once there are so many."""
        return [dict(message.headers() or ()) for message in self.wait_for(count, self.names.dead)]


def wait_until(condition: Callable[[], Any], within: float = 60.0) -> Any:
    """What the condition gives as soon as it is true."""
    deadline = time.monotonic() + within
    while not (result := condition()):
        assert time.monotonic() < deadline, "It did not come true."
        time.sleep(0.02)
    return result
