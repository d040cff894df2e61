"""What a Kafka topic holds, as readers of committed records see it."""

from typing import Any, NamedTuple

import confluent_kafka as ck


class Stored(NamedTuple):
    """A record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any

    @property
    def number(self) -> int:
        """The value, where it is a number."""
        return int(self.value or b"")


def committed(servers: str, topic: str) -> list[Stored]:
    """All records of a Kafka topic, of each partition in order, but for transactions that are open."""
    config = {"bootstrap.servers": servers, "group.id": "readers", "enable.partition.eof": True}
    consumer = ck.Consumer(
        {"log_level": 0, **config, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([ck.TopicPartition(topic, partition, 0) for partition in partitions])
    records: list[Stored] = []
    open_ends = set(partitions)
    while open_ends:
        message: Any = consumer.poll(30)
        assert message is not None
        if message.error():
            open_ends.discard(message.partition())
        else:
            place = message.partition(), message.offset()
            records.append(Stored(*place, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(records, key=lambda record: record[:2])
