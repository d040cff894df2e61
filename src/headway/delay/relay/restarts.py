"""The pauses before a relay starts again, which grow with failures in a row."""

import math
import random
import time

from headway.core.retry import exponential_backoff
from headway.errors import AuthenticationError, KafkaError
from headway.kafka.binding.connection import LET_IN_NO_MORE_AFTER
from headway.kafka.consumer.standing import Standing, standing

_LONGEST_PAUSE = 10.0  # seconds
_pause = exponential_backoff(first=0.5, longest=_LONGEST_PAUSE)
_FAILS_WITHIN = 20.0  # seconds; a failure this long after the pause no longer counts as in a row
_BEHIND_TIMES = 4  # failures in a row that a member behind its group's generation may have before it rejoins


class Restarts:
    """Decides when a relay starts again after a failure or a rebalance. Until then it has no partitions."""

    def __init__(self) -> None:
        self._begin_at: float | None = None
        self._failures = 0  # in a row
        self._failed_at = -math.inf
        self._refused_since: float | None = None

    @property
    def is_pending(self) -> bool:
        """True if the relay must start again, now or later."""
        return self._begin_at is not None

    @property
    def due_in(self) -> float:
        """The seconds until it starts again."""
        return math.inf if self._begin_at is None else self._begin_at - time.monotonic()

    def plan(self, seconds: float) -> None:
        """Start again after this many seconds."""
        self._begin_at = time.monotonic() + seconds

    def begun(self) -> None:
        """Record that the relay has started again."""
        self._begin_at = None

    def failed(self) -> float:
        """Note a failure. Returns the seconds to pause after it."""
        now = time.monotonic()
        self._failures = self._failures + 1 if self._is_in_a_row(now) else 1
        self._failed_at = now
        return _pause(self._failures, random.random())  # noqa: S311 - it spreads retries

    def is_expelled(self, error: KafkaError) -> bool:
        """Return whether the relay must rejoin its group after this failure."""
        member = standing(error)
        return member is Standing.EXPELLED or (member is Standing.BEHIND and self._failures > _BEHIND_TIMES)

    def raise_if_lasting(self, error: AuthenticationError) -> None:
        """Raise the error if it has kept occurring for half a minute."""
        now = time.monotonic()
        # A restart that succeeds proves nothing: open connections keep working until they have to log in again.
        if self._refused_since is None or not self._is_in_a_row(now):
            self._refused_since = now
        if now - self._refused_since > LET_IN_NO_MORE_AFTER:
            raise AuthenticationError(str(error), was_connected=True) from error

    def _is_in_a_row(self, now: float) -> bool:
        return now - self._failed_at < _LONGEST_PAUSE + _FAILS_WITHIN
