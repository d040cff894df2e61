"""The pauses before a relay starts again. A pause grows with each failure in a row."""

import math
import random
import time

from headway.core.retry import exponential_backoff
from headway.errors import AuthenticationError, KafkaError
from headway.kafka.binding.connection import LET_IN_NO_MORE_AFTER
from headway.kafka.consumer.standing import Standing, standing

_LONGEST_PAUSE = 10.0  # the longest pause in seconds
_pause = exponential_backoff(first=0.5, longest=_LONGEST_PAUSE)
# How soon after a pause a failure must occur to count as in a row with the last failure, in seconds.
_FAILS_WITHIN = 20.0
_BEHIND_TIMES = 4  # after more failures in a row than this, a member with an old generation joins its group again


class Restarts:
    """Decides when a relay starts again after a failure or a rebalance.

    Until it starts, the relay has no partitions.
    """

    def __init__(self) -> None:
        self._begin_at: float | None = None
        self._failures = 0  # the number of failures in a row
        self._failed_at = -math.inf
        self._refused_since: float | None = None

    @property
    def is_pending(self) -> bool:
        """True if the relay must start again, now or later."""
        return self._begin_at is not None

    @property
    def due_in(self) -> float:
        """The number of seconds until the relay starts again, or infinity if no start is planned."""
        return math.inf if self._begin_at is None else self._begin_at - time.monotonic()

    def plan(self, seconds: float) -> None:
        """Plan to start again in this many seconds."""
        self._begin_at = time.monotonic() + seconds

    def begun(self) -> None:
        """Record that the relay has started again."""
        self._begin_at = None

    def failed(self) -> float:
        """Record a failure. Returns how long to pause after the failure, in seconds."""
        now = time.monotonic()
        self._failures = self._failures + 1 if self._is_in_a_row(now) else 1
        self._failed_at = now
        return _pause(self._failures, random.random())  # noqa: S311 - spreads retries over time

    def is_expelled(self, error: KafkaError) -> bool:
        """Return whether the relay must rejoin its group after this failure."""
        member = standing(error)
        return member is Standing.EXPELLED or (member is Standing.BEHIND and self._failures > _BEHIND_TIMES)

    def raise_if_lasting(self, error: AuthenticationError) -> None:
        """Raise the error if the credentials have been refused for half a minute."""
        now = time.monotonic()
        # A successful restart does not prove that the credentials are accepted again, because open connections keep
        # working until they must log in again.
        if self._refused_since is None or not self._is_in_a_row(now):
            self._refused_since = now
        if now - self._refused_since > LET_IN_NO_MORE_AFTER:
            raise AuthenticationError(str(error), was_connected=True) from error

    def _is_in_a_row(self, now: float) -> bool:
        return now - self._failed_at < _LONGEST_PAUSE + _FAILS_WITHIN
