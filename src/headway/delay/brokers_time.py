"""The brokers' time, as a scheduler learns it.

A scheduler may write to its lines and to nothing else for certain. So the records that brokers stamp go to the line
that is read at once, and relays pass over them.
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
    """The brokers' time as far as this machine knows it: by its own clock until `ask` was called.

    Args:
        connection: The settings to reach Kafka with.
        names: The scheduler's, whose topics must exist when `ask` is called.
    """

    def __init__(self, connection: Mapping[str, Any], names: TopicNames) -> None:
        self._connection = connection
        self._topic = names.line(MEMORY)
        self._clock = SenderClock()
        self._asked_at = -math.inf  # this machine's wall clock less its monotonic one

    def now(self) -> float:
        """Return the seconds since the epoch by the brokers' clock."""
        return (wall := time.time()) + self._clock.correction(time.monotonic(), wall) / 1000

    def correction(self) -> int:
        """Return the milliseconds by which the brokers' clock is ahead of this machine's; 0 if it may be right."""
        return self._clock.correction(time.monotonic(), time.time())

    @property
    def is_doubtful(self) -> bool:
        """True if this machine's wall clock stepped since `ask`: it was set, or the machine was suspended.

        The monotonic clock stands still while a machine is suspended, so the brokers have to be asked again.
        """
        return abs(_difference() - self._asked_at) > _STEPPED_BY

    def ask(self) -> None:
        """Ask the brokers; raise `KafkaError` if none answers."""
        ask_for_stamps(self._connection, self._topic, self._clock.observe)
        self._asked_at = _difference()


def _difference() -> float:
    return time.time() - time.monotonic()
