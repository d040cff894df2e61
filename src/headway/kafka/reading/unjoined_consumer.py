"""A consumer without a group, which reads partitions from given offsets and needs no permission on any group.

The binding does not create a consumer without the setting `group.id`, and with this setting librdkafka searches for the
group's coordinator. If the broker refuses, librdkafka repeats the request twice a second as long as the client exists,
and each request adds a line to the broker's audit log.

So the part of librdkafka that acts as a group member is closed as soon as the client is created, before it connects to
any broker. Partitions are then read through librdkafka's simple consumer, with the binding's own `consume`. The simple
consumer also looks up a new topic at once, whereas `assign` waits up to a second for librdkafka's next regular check.
"""

import contextlib
from collections.abc import Collection
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.errors import KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.unpacking import UNPACKS
from headway.settings.config import Config

OURS: Final[Config] = {
    "group.id": "headway-unjoined",  # only the binding needs this setting, and never sends it to a broker
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,  # with True, the simple consumer would commit offsets
}
"""The settings that a caller cannot change."""

_LOOKS_AGAIN_AFTER = 0.5  # librdkafka searches for an unknown leader at intervals of this many seconds
_MOST_BY_NAME = 8


def unjoined_consumer(config: Config, connection: Connection | None = None) -> "UnjoinedConsumer":
    """Create a consumer that is not a member of a group. The arguments and errors are those of `make_client`."""
    return make_client(UnjoinedConsumer, {**UNPACKS, **config, **OURS}, connection)


class UnjoinedConsumer(cimpl.Consumer):
    """A client of the binding that only reads by offset. It is created by `unjoined_consumer`.

    `consume`, `get_watermark_offsets`, `list_topics` and `close` are the binding's own methods. Methods that need a
    group fail.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._read: set[Partition] = set()
        self._known: set[str] = set()
        capi.close_membership(self)

    def assign(self, partitions: Collection[ck.TopicPartition]) -> None:
        """Read these partitions, each from its own offset, and no other partitions.

        Raises `KafkaError` for an offset at which reading cannot begin, such as the logical offset "stored".
        """
        while self._read:
            capi.stop_reading(self, self._read.pop())
        self.find_leaders({each.topic for each in partitions})
        for each in partitions:
            self.start(each.topic, each.partition, each.offset)

    def start(self, topic: str, partition: int, offset: int, queue: int | None = None) -> None:
        """Start to read another partition at this offset. The partition must not be read already.

        The messages arrive in the queue of librdkafka with the address `queue`, or by default in the queue from which
        `consume` returns messages. Raises the same errors as `assign`.
        """
        # The partition is noted first, so that `assign` stops it even if an interrupt ends the next call.
        self._read.add((topic, partition))
        if not capi.start_reading(self, (topic, partition), offset, queue):
            raise KafkaError(
                f"Partition {partition} of {topic} cannot be read from the offset {offset}. Choose an offset of at "
                "least 0, or the logical offset of the beginning or the end."
            )

    def take(self, most: int, within: float) -> list[ck.Message]:
        """Return at most `most` messages that have arrived. Waits up to `within` seconds for the first one.

        `consume`, by contrast, waits until `most` messages have arrived or the time is over.
        """
        first = self.consume(1, within)
        return first + self.consume(most - 1, 0) if first else first

    def stop(self, topic: str, partition: int) -> None:
        """Stop reading a partition, and drop its fetched messages."""
        self._read.discard((topic, partition))
        capi.stop_reading(self, (topic, partition))

    def find_leaders(self, of_topics: Collection[str]) -> None:
        """Look up the leaders of new topics.

        Without this, librdkafka would wait half a second until it looks them up.
        """
        topics = set(of_topics) - self._known
        self._known |= topics
        with contextlib.suppress(ck.KafkaException):  # librdkafka will look up these leaders again while it reads
            if len(topics) > _MOST_BY_NAME:
                self.list_topics(timeout=_LOOKS_AGAIN_AFTER)
                return
            for topic in topics:
                self.list_topics(topic, timeout=_LOOKS_AGAIN_AFTER)
