"""Whether the relay may write to a topic of its scheduler that it can do without for a while."""

import logging
import math
import random
import time
from collections.abc import Callable

from headway.core.circuit_breaker import CircuitBreaker
from headway.errors import HeadwayError

log = logging.getLogger(__name__)

_KNOWN_FOR = 5.0
_ANSWER_WITHIN = 5.0


class Writable:
    """Looks whether a topic is there; and after a refusal, later and later, whether it takes records again.

    A try would cost much: librdkafka looks for a missing topic for half a minute, and a transaction is aborted.

    Args:
        topic: Kafka's topic.
        partitions_of: Returns how many partitions a topic has, asked within so many seconds; 0 if it is missing.
        why_not: Returns a sentence about what keeps records out of a topic, or None.
        meanwhile: A sentence for the warning: what becomes of the records.
    """

    def __init__(
        self,
        topic: str,
        partitions_of: Callable[[str, float], int],
        why_not: Callable[[str], str | None],
        meanwhile: str,
    ) -> None:
        self._topic = topic
        self._partitions_of = partitions_of
        self._why_not = why_not
        self._meanwhile = meanwhile
        self._breaker = CircuitBreaker()
        self._is_refused = False
        self._known_until = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether to try to write now."""
        now = time.monotonic()
        if not self._breaker.allows(now):
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
            if not self._is_refused and self._partitions_of(self._topic, _ANSWER_WITHIN) > 0:
                return None
            return self._why_not(self._topic)
        except HeadwayError:  # what cannot be asked now, sending will show
            return None

    @property
    def again_in(self) -> float:
        """In how many seconds to try again."""
        return max(0.0, self._breaker.again_at - time.monotonic())

    def refused(self, reason: str) -> None:
        """Note that a record was refused; the warning has what the brokers say of the topic, or else this reason."""
        self._is_refused = True
        self._known_until = -math.inf
        if self._breaker.refused(time.monotonic(), random.random()):  # noqa: S311 - it spreads retries
            reason = self._look() or reason
            log.warning("Nothing can be written to %s: %s. %s", self._topic, reason.rstrip("."), self._meanwhile)
