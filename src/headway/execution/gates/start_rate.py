"""Limits how many attempts start per second: a token bucket is filled at this member's share of the group's rate.

Invariant: in any period, the number of starts exceeds the number that the rate allows by at most one burst. A burst is
the number of starts that the rate allows in a twentieth of a second, but at least one.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headway.execution.gate import Gate
from headway.execution.jobs import Job

GROUP: Final = "group"
"""The name of the whole group's rate, in the messages that members use to lend fractions of rates to each other."""

# The bucket holds this many seconds' worth of tokens, so that no start is lost if a thread wakes this late.
_BURST = 0.05
# A member counts as limited by the rate if it has used this fraction of its share while records were ready to start.
_MUCH = 0.7
# A wait for tokens lasts until the bucket has this many seconds' worth of tokens, because one wait costs as much CPU as
# the start of many attempts.
_GRAIN = 0.01
_ROUNDING = 1e-9


class StartRate(Gate):
    """Limits how many attempts start per second.

    >>> rate = StartRate(2)
    >>> rate.may_start(running=0, now=0.0), rate.started([None], running=1, now=0.0)
    (True, False)
    >>> rate.may_start(running=1, now=0.0), rate.opens_at(), rate.may_start(running=1, now=0.5)
    (False, 0.5, True)
    """

    def __init__(self, rate: float) -> None:
        self._limit_of_all = rate
        self._rate = rate  # this member's share of the rate
        self._burst = max(1.0, rate * _BURST)
        self._tokens = self._burst
        self._filled_at = -math.inf
        self._started = 0  # attempts started since the last call of `needs`

    def may_start(self, running: int, now: float) -> bool:
        """Return whether the rate allows one more start."""
        return self.allowed(now) >= 1

    def opens_at(self) -> float | None:
        """Return when the rate allows the next starts, or None if this member has no share of the rate."""
        if not self._rate:
            return None
        if self._tokens >= 1:
            return -math.inf
        return self._filled_at + (max(1.0, self._rate * _GRAIN) - self._tokens) / self._rate

    def started(self, job: Job, running: int, now: float) -> bool:
        """Take a token for each attempt of the job."""
        self._tokens -= len(job)
        self._started += len(job)
        return False

    def allowed(self, now: float) -> int:
        """Return how many attempts the rate allows to start now."""
        if not self._rate:
            return 0
        self._fill(now)
        return int(self._tokens + _ROUNDING)

    @property
    def is_shared(self) -> bool:
        """True, because the members of a group share this rate."""
        return True

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return the fraction of the rate that was used in the last `seconds`, and the further fraction that is needed.

        `ready` is the number of records that could start if the rate allowed it. The further fraction is 0 if this
        member does not need more than its share.
        """
        started, self._started = self._started, 0
        # Even if a start is allowed now, the rate can be too low: the token can be new, or the machine can be too busy
        # to use it.
        hungry = ready > 0 and (not self.may_start(0, now) or started >= _MUCH * seconds * self._rate)
        if not started and not hungry:
            return {}
        return {GROUP: (started / seconds / self._limit_of_all, ready / self._limit_of_all if hungry else 0.0)}

    def share(self, share: float, now: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Set this member's fraction of the rate, from 0 to 1. A value for `GROUP` in `others` overrides `share`."""
        self._fill(now)
        self._rate = self._limit_of_all * others.get(GROUP, share)
        self._burst = max(1.0, self._rate * _BURST)
        self._tokens = min(self._tokens, self._burst)

    def _fill(self, now: float) -> None:
        if now > self._filled_at:
            # Before the first refill the time since the last one is infinite, and infinity times 0 is NaN.
            if self._rate:
                self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
            self._filled_at = now
