"""Gives out start times, so that no more records start per second than a rate allows.

Invariant: in any period, the number of start times is at most the number that the rate allows, plus one burst. A burst
is one start plus the number that the rate allows in a twentieth of a second.
"""

import math
from collections.abc import Hashable

_BURST = 0.05  # how many seconds' worth of starts can be made up for, so that a late wake-up does not lower the rate


class StartTimes:
    """The start times under one limit. A record keeps the time that it was given until it starts.

    `limit` is the number of starts per second of the whole group. `share` sets this member's part of it, which is 0 at
    the beginning.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._rate = 0.0
        self._next = -math.inf  # the earliest time of the next start
        self._given: dict[Hashable, float] = {}
        self._started = 0  # starts since the last call of `needs`

    def of(self, record: Hashable, now: float) -> float:
        """Return when a record can start. The result is infinite if this member has no part of the rate."""
        given = self._given.get(record)
        if given is None:
            if not self._rate:
                return math.inf
            given = self._given[record] = max(self._next, now - _BURST)
            self._next = given + 1 / self._rate
        return given

    def started(self, record: Hashable) -> None:
        """Record that a record starts."""
        self._given.pop(record, None)
        self._started += 1

    def share(self, share: float) -> bool:
        """Set this member's part of the limit, from 0 to 1.

        Returns whether the part has changed. In this case, all records that have not started must ask again.
        """
        rate = self.limit * share
        if rate == self._rate:
            return False
        first = min(self._given.values(), default=self._next)
        self._rate, self._next = rate, first
        self._given.clear()
        return True

    def needs(self, seconds: float, now: float) -> tuple[float, float] | None:
        """Return the used fraction of the limit in the last `seconds`, and the waiting starts in seconds of the limit.

        Returns None if nothing was started and nothing waits.
        """
        started, self._started = self._started, 0
        if not started and not self._given:
            return None
        return started / seconds / self.limit, len(self._given) / self.limit
