"""Checks whether topics and partitions exist before records are sent to them."""

import math
import threading
import time
from collections.abc import Callable

from headway.errors import KafkaError
from headway.kafka.binding.time_limits import PARTITIONS_TOLD_WITHIN

ASK_AGAIN_AFTER = 1.0


class Targets:
    """Looks up which topics and partitions exist. librdkafka itself would look for a missing topic for half a minute.

    This class looks up each topic once, and a missing topic again after a second. So a burst of records does not cause
    a burst of requests. All methods are thread-safe.

    Args:
        partitions_of: A function (topic, time limit in seconds) that returns the topic's number of partitions, or 0 if
            the topic is missing.
    """

    def __init__(self, partitions_of: Callable[[str, float], int]) -> None:
        self._partitions_of = partitions_of
        self._partitions: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._asking = threading.Lock()

    def have(self, topic: str, partition: int) -> bool:
        """Return whether a topic has this partition.

        If Kafka does not answer, return True, because the send will show whether the partition exists.
        """
        try:
            return self.too_few(topic, partition) is None
        except KafkaError:
            return True

    def too_few(self, topic: str, partition: int) -> int | None:
        """Return None if the topic has this partition.

        Otherwise return the topic's number of partitions, or 0 if the topic is missing.

        Raises `KafkaError` if no broker answers, and `DeliveryError` if Kafka refuses the topic's name, or does not
        permit access to it.
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
