"""The brokers' time, as a scheduler finds it out.

A scheduler can be sure of the right to write to its delay topics only. So it sends a record for the brokers to stamp to
the delay topic that relays read at once, and relays skip it.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

from headway.core.delay.ladder import MEMORY
from headway.core.delay.sender_clock import SenderClock
from headway.delay.topic_names import TopicNames
from headway.kafka.producer.stamps import ask_for_stamps

_STEPPED_BY = 0.5  # seconds


class BrokersTime:
    """The brokers' time as far as this machine knows it. Until `ask` is called, it is this machine's own.

    Args:
        connection: The settings to reach Kafka with.
        names: The names of the scheduler's topics, which must exist when `ask` is called.
    """

    def __init__(self, connection: Mapping[str, Any], names: TopicNames) -> None:
        self._connection = connection
        self._topic = names.delay_topic(MEMORY)
        self._clock = SenderClock()
        self._asked_at = -math.inf  # this machine's wall clock minus its monotonic clock

    def now(self) -> float:
        """Return the seconds since the epoch by the brokers' clock."""
        return (wall := time.time()) + self._clock.correction(time.monotonic(), wall) / 1000

    def correction(self) -> int:
        """Return by how many milliseconds the brokers' clock is ahead of this machine's, or 0 if they may agree."""
        return self._clock.correction(time.monotonic(), time.time())

    @property
    def is_doubtful(self) -> bool:
        """True if this machine's wall clock has jumped since `ask`: it was set, or the machine was suspended.

        The monotonic clock stands still while a machine is suspended, so the brokers must be asked again.
        """
        return abs(_difference() - self._asked_at) > _STEPPED_BY

    def ask(self) -> None:
        """Ask the brokers for their time. Raises `KafkaError` if none answers."""
        ask_for_stamps(self._connection, self._topic, self._clock.observe)
        self._asked_at = _difference()


def _difference() -> float:
    return time.time() - time.monotonic()
