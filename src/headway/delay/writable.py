"""Checks whether a relay can write to a topic. The relay can continue for a while without writing to it."""

import logging
import math
import random
import time
from collections.abc import Callable

from headway.core.refusal_pause import RefusalPause
from headway.errors import AuthorizationError, HeadwayError
from headway.kafka.binding.time_limits import PARTITIONS_TOLD_WITHIN

log = logging.getLogger(__name__)

_KNOWN_FOR = 5.0
_IN_A_ROW = 20.0


class Writable:
    """Decides when to try to write to a topic: the topic must exist, and after a refusal a growing pause must be over.

    Each attempt to write is costly: librdkafka looks for a missing topic for half a minute, and a failed write aborts
    the transaction.

    Args:
        topic: The Kafka topic.
        partitions_of: Takes a topic and a time limit in seconds, and returns how many partitions the topic has, or 0 if
            it does not exist.
        why_not: Takes a topic, and returns a sentence that explains why it refuses records, or None.
        meanwhile: A sentence for the warning, which states what happens to the records until the topic accepts them.
        longest: The longest pause in seconds.
    """

    def __init__(
        self,
        topic: str,
        partitions_of: Callable[[str, float], int],
        why_not: Callable[[str], str | None],
        meanwhile: str,
        longest: float = 10.0,
    ) -> None:
        self._topic = topic
        self._partitions_of = partitions_of
        self._why_not = why_not
        self._meanwhile = meanwhile
        self._pause = RefusalPause(longest)
        self._is_refused = False
        self._refused_since = math.inf
        self._refused_at = -math.inf
        self.reason = ""
        self._known_until = -math.inf

    @property
    def is_open(self) -> bool:
        """True if a write can be attempted now."""
        now = time.monotonic()
        if not self._pause.allows(now):
            return False
        if now < self._known_until:
            return True
        if (reason := self._look()) is not None:
            self.refused(reason)
            return False
        self._is_refused = False
        self._known_until = now + _KNOWN_FOR
        return True

    def _look(self) -> str | None:
        try:
            if not self._is_refused and self._partitions_of(self._topic, PARTITIONS_TOLD_WITHIN) > 0:
                return None
            return self._why_not(self._topic)
        except AuthorizationError as error:
            return str(error)
        except HeadwayError:  # the brokers do not answer, so try to send the record
            return None

    @property
    def again_in(self) -> float:
        """The seconds until the next attempt."""
        return max(0.0, self._pause.again_at - time.monotonic())

    @property
    def refused_for(self) -> float:
        """How long the topic has refused records, in seconds.

        This is the time from the first to the last refusal. The count starts again with a refusal that comes more than
        `_IN_A_ROW` seconds after the previous one.
        """
        return max(0.0, self._refused_at - self._refused_since)

    def refused(self, reason: str) -> None:
        """Record that the topic refused a record.

        The brokers' own reason is logged, or `reason` if the brokers give none.
        """
        now = time.monotonic()
        if now - self._refused_at > _IN_A_ROW:
            self._refused_since = now
        self._refused_at = now
        self._is_refused = True
        self._known_until = -math.inf
        self.reason = self.reason or reason
        if self._pause.refused(now, random.random()):  # noqa: S311 - spreads retries over time
            self.reason = self._look() or reason
            log.warning("Nothing can be written to %s: %s. %s", self._topic, self.reason.rstrip("."), self._meanwhile)
