"""Checks whether topics and partitions exist before records are sent to them."""

import math
import threading
import time
from collections.abc import Callable

from headway.errors import KafkaError
from headway.kafka.binding.time_limits import PARTITIONS_TOLD_WITHIN

ASK_AGAIN_AFTER = 1.0


class Targets:
    """The topics and partitions that exist. librdkafka itself would look for a missing topic for half a minute.

    Kafka is asked for each topic once, and for a missing one again after a second, not for each record of a burst.
    Every method can be called from any thread.

    Args:
        partitions_of: Returns the number of partitions of a topic, 0 if it is missing; called with the topic and the
            time limit in seconds.
    """

    def __init__(self, partitions_of: Callable[[str, float], int]) -> None:
        self._partitions_of = partitions_of
        self._partitions: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._asking = threading.Lock()

    def have(self, topic: str, partition: int) -> bool:
        """Return whether a topic has this partition. If Kafka does not answer, return True: the send will show it."""
        try:
            return self.too_few(topic, partition) is None
        except KafkaError:
            return True

    def too_few(self, topic: str, partition: int) -> int | None:
        """Return None if the topic has this partition, and otherwise its number of partitions, 0 for a missing topic.

        Raises `KafkaError` if no broker answers, and `DeliveryError` if Kafka refuses the topic's name or the access.
        """
        if self._partitions.get(topic, 0) > partition:
            return None
        with self._asking:
            asked_at = self._asked_at.get(topic, -math.inf)
            if self._partitions.get(topic, 0) <= partition and time.monotonic() - asked_at > ASK_AGAIN_AFTER:
                self._partitions[topic] = self._partitions_of(topic, PARTITIONS_TOLD_WITHIN)
                self._asked_at[topic] = time.monotonic()
        count = self._partitions[topic]
        return None if count > partition else count
