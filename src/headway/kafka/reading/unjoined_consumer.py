"""A consumer without a group: it reads partitions from given offsets, and needs no right on any group.

The binding makes no consumer without the setting `group.id`, and librdkafka then asks for that group's coordinator. If
the broker refuses, librdkafka asks twice a second as long as the client exists, and each time adds a line to the
broker's audit log. So the part of librdkafka that is the group member is closed once the client is made, before it
connects to any broker. Partitions are then read through librdkafka's simple consumer, by the binding's own `consume`.

The simple consumer also looks up a new topic at once, whereas `assign` waits up to a second for the next round.
"""

import contextlib
from collections.abc import Collection
from typing import Any, Final

import confluent_kafka as ck

from headway.errors import KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.unpacking import UNPACKS
from headway.settings.config import Config

OURS: Final[Config] = {
    "group.id": "headway-unjoined",  # for the binding alone; it is never sent to a broker
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,  # or the simple consumer would commit
}
"""The settings that a caller cannot change."""

_LOOKS_AGAIN_AFTER = 0.5  # seconds after which librdkafka asks again for a leader that it does not know
_MOST_BY_NAME = 8


def unjoined_consumer(config: Config, connection: Connection | None = None) -> "UnjoinedConsumer":
    """Return a consumer that is not a member of a group. Takes and raises the same as `make_client`."""
    return make_client(UnjoinedConsumer, {**UNPACKS, **config, **OURS}, connection)


class UnjoinedConsumer(ck.Consumer):
    """A client of the binding that reads by offset alone; made by `unjoined_consumer`.

    `consume`, `get_watermark_offsets`, `list_topics` and `close` are the methods of the binding. Calls that need a
    group fail.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._read: set[Partition] = set()
        self._known: set[str] = set()
        capi.close_membership(self)

    def assign(self, partitions: Collection[ck.TopicPartition]) -> None:
        """Read these partitions, each from its offset on, and no others.

        Raises `KafkaError` for an offset at which reading cannot begin, such as the logical offset "stored".
        """
        while self._read:
            capi.stop_reading(self, self._read.pop())
        self.find_leaders({each.topic for each in partitions})
        for each in partitions:
            self.start(each.topic, each.partition, each.offset)

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Read one more partition from this offset on, which must not be read already. Raises as `assign` does."""
        self._read.add((topic, partition))  # noted first, so that an interruption leaves no partition read and unknown
        if not capi.start_reading(self, (topic, partition), offset):
            raise KafkaError(
                f"Partition {partition} of {topic} cannot be read from the offset {offset}. Name an offset from 0 on, "
                "or the beginning or end."
            )

    def take(self, most: int, within: float) -> list[ck.Message]:
        """Return the messages that have arrived, at most `most`. Waits for the first one for at most `within` seconds.

        `consume`, by contrast, waits for all `most` messages, or for the whole time.
        """
        first = self.consume(1, within)
        return first + self.consume(most - 1, 0) if first else first

    def stop(self, topic: str, partition: int) -> None:
        """Stop reading a partition, and drop its fetched messages."""
        self._read.discard((topic, partition))
        capi.stop_reading(self, (topic, partition))

    def find_leaders(self, of_topics: Collection[str]) -> None:
        """Ask a broker for the leaders of new topics, because reading without a known leader waits half a second."""
        topics = set(of_topics) - self._known
        self._known |= topics
        with contextlib.suppress(ck.KafkaException):  # librdkafka will ask again while it reads
            if len(topics) > _MOST_BY_NAME:
                self.list_topics(timeout=_LOOKS_AGAIN_AFTER)
                return
            for topic in topics:
                self.list_topics(topic, timeout=_LOOKS_AGAIN_AFTER)
