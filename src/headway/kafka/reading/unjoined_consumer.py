"""A consumer without a group: it reads partitions from given offsets, and needs no right on any group.

The binding takes no consumer without the setting `group.id`, and librdkafka asks for the coordinator of any group
named. If that is denied, it asks twice a second for as long as the client lives, each time a line in the broker's audit
log. The part of librdkafka that is the group member is therefore closed once the client is made, before any broker is
connected. Partitions are then read through librdkafka's simple consumer, by the binding's own `consume`.

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
    "group.id": "headway-unjoined",  # for the binding alone: no broker hears it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,  # or the simple consumer would commit
}
"""The settings that a caller cannot choose."""


_LOOKS_AGAIN_AFTER = 0.5  # seconds, librdkafka's own for partitions whose leader it does not know
_MOST_BY_NAME = 8


def unjoined_consumer(config: Config, connection: Connection | None = None) -> "UnjoinedConsumer":
    """Return a consumer that is no member of a group; takes and raises the same as `make_client`."""
    return make_client(UnjoinedConsumer, {**UNPACKS, **config, **OURS}, connection)


class UnjoinedConsumer(ck.Consumer):
    """A client of the binding that reads by offset alone; made by `unjoined_consumer`.

    `consume`, `get_watermark_offsets`, `list_topics` and `close` are the binding's. Calls that need a group are
    refused.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._read: set[Partition] = set()
        self._known: set[str] = set()
        capi.close_membership(self)

    def assign(self, partitions: Collection[ck.TopicPartition]) -> None:
        """Read these partitions, each from its offset on, and no others.

        Raises `KafkaError` for an offset at which no reading can begin, such as a committed one.
        """
        while self._read:
            capi.stop_reading(self, self._read.pop())
        self.find_leaders({each.topic for each in partitions})
        for each in partitions:
            self.start(each.topic, each.partition, each.offset)

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Read another partition, too, from this offset on; it must not be read already. Raises as `assign` does."""
        self._read.add((topic, partition))  # noted first, so that an interruption leaves no partition read and unknown
        if not capi.start_reading(self, (topic, partition), offset):
            raise KafkaError(
                f"Partition {partition} of {topic} cannot be read from the offset {offset}. Name an offset from 0 on, "
                "or the beginning or end."
            )

    def take(self, most: int, within: float) -> list[ck.Message]:
        """Return the messages that are there, as soon as there is one; none after so many seconds.

        `consume` waits for so many messages, or else for the whole time.
        """
        first = self.consume(1, within)
        return first + self.consume(most - 1, 0) if first else first

    def stop(self, topic: str, partition: int) -> None:
        """Read a partition no more; what was fetched of it does not come."""
        self._read.discard((topic, partition))
        capi.stop_reading(self, (topic, partition))

    def find_leaders(self, of_topics: Collection[str]) -> None:
        """Ask any broker about new topics: who reads before the leaders are known waits for half a second."""
        topics = set(of_topics) - self._known
        self._known |= topics
        with contextlib.suppress(ck.KafkaException):  # reading goes on to look for them
            if len(topics) > _MOST_BY_NAME:
                self.list_topics(timeout=_LOOKS_AGAIN_AFTER)
                return
            for topic in topics:
                self.list_topics(topic, timeout=_LOOKS_AGAIN_AFTER)
