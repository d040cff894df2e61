"""Finds out the brokers' time for a scheduler.

A record is written to Kafka, and the timestamp that a broker has given to the record is read back. The delay topics are
the only topics to which a scheduler certainly has permission to write. So the record is written to the memory topic,
which relays read without delay. Relays skip the record.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

from headway.core.delay.ladder import MEMORY
from headway.core.delay.sender_clock import SenderClock
from headway.delay.topic_names import TopicNames
from headway.kafka.producer.stamps import ask_for_stamps

_STEPPED_BY = 0.5  # how far the wall clock must jump before the brokers' time counts as doubtful, in seconds


class BrokersTime:
    """This machine's estimate of the brokers' time. Before the first call of `ask`, this machine's own time is used.

    Args:
        connection: The settings for the connection to Kafka.
        names: The names of the scheduler's topics. The topics must exist when `ask` is called.
    """

    def __init__(self, connection: Mapping[str, Any], names: TopicNames) -> None:
        self._connection = connection
        self._topic = names.delay_topic(MEMORY)
        self._clock = SenderClock()
        self._asked_at = -math.inf  # this machine's wall clock minus its monotonic clock at the last `ask`

    def now(self) -> float:
        """Return the time of the brokers' clock, in seconds since the epoch."""
        return (wall := time.time()) + self._clock.correction(time.monotonic(), wall) / 1000

    def correction(self) -> int:
        """Return how many milliseconds the brokers' clock is ahead of this machine's.

        Returns 0 if they seem to agree.
        """
        return self._clock.correction(time.monotonic(), time.time())

    @property
    def is_doubtful(self) -> bool:
        """True if this machine's wall clock has jumped since `ask`: it was set, or the machine was suspended.

        The monotonic clock stops while the machine is suspended, so the brokers' time must be requested again
        afterwards.
        """
        return abs(_difference() - self._asked_at) > _STEPPED_BY

    def ask(self) -> None:
        """Request the brokers' time. Raises `KafkaError` if no broker answers."""
        ask_for_stamps(self._connection, self._topic, self._clock.observe)
        self._asked_at = _difference()


def _difference() -> float:
    return time.time() - time.monotonic()
