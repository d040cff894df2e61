"""How a scheduler finds out the brokers' time.

It writes a record, and reads the time with which a broker has stamped it. The scheduler is certain to have permission
to write only to its delay topics. So the record goes to the delay topic that relays read at once, and relays skip it.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

from headway.core.delay.ladder import MEMORY
from headway.core.delay.sender_clock import SenderClock
from headway.delay.topic_names import TopicNames
from headway.kafka.producer.stamps import ask_for_stamps

_STEPPED_BY = 0.5  # seconds that the wall clock must jump before the brokers' time counts as doubtful


class BrokersTime:
    """The brokers' time, as far as this machine knows it. Before the first call of `ask`, this machine's time is used.

    Args:
        connection: The settings to reach Kafka with.
        names: The names of the scheduler's topics. The topics must exist when `ask` is called.
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
        """Return by how many milliseconds the brokers' clock is ahead of this machine's, or 0 if they seem to agree."""
        return self._clock.correction(time.monotonic(), time.time())

    @property
    def is_doubtful(self) -> bool:
        """True if this machine's wall clock has jumped since `ask`, because it was set or the machine was suspended.

        The monotonic clock stops while the machine is suspended, so the brokers' time must then be requested again.
        """
        return abs(_difference() - self._asked_at) > _STEPPED_BY

    def ask(self) -> None:
        """Request the brokers' time. Raises `KafkaError` if no broker answers."""
        ask_for_stamps(self._connection, self._topic, self._clock.observe)
        self._asked_at = _difference()


def _difference() -> float:
    return time.time() - time.monotonic()
