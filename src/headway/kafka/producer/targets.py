"""The topics and partitions that records are for: whether they exist is known before a record is sent."""

import math
import threading
import time
from collections.abc import Callable

from headway.errors import KafkaError
from headway.kafka.binding.time_limits import PARTITIONS_TOLD_WITHIN

ASK_AGAIN_AFTER = 1.0


class Targets:
    """The topics and partitions that exist, asked for once: librdkafka looks for a missing topic for half a minute.

    What is missing is asked for again a second later, not for each record of a burst. Any thread may ask.

    Args:
        partitions_of: Returns how many partitions a topic has, asked within so many seconds; 0 if it is missing.
    """

    def __init__(self, partitions_of: Callable[[str, float], int]) -> None:
        self._partitions_of = partitions_of
        self._partitions: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._asking = threading.Lock()

    def have(self, topic: str, partition: int) -> bool:
        """Return whether a topic has this partition; True if that cannot be asked now: a send will show it."""
        try:
            return self.too_few(topic, partition) is None
        except KafkaError:
            return True

    def too_few(self, topic: str, partition: int) -> int | None:
        """Return how many partitions a topic has if this one is not among them, 0 for a missing topic; else None.

        Raises `KafkaError` if no broker answers, and `DeliveryError` if the topic's name or access is refused.
        """
        if self._partitions.get(topic, 0) > partition:
            return None
        with self._asking:
            if self._partitions.get(topic, 0) <= partition and self._is_to_be_asked(topic):
                self._partitions[topic] = self._partitions_of(topic, PARTITIONS_TOLD_WITHIN)
                self._asked_at[topic] = time.monotonic()
        count = self._partitions[topic]
        return None if count > partition else count

    def _is_to_be_asked(self, topic: str) -> bool:
        return time.monotonic() - self._asked_at.get(topic, -math.inf) > ASK_AGAIN_AFTER
