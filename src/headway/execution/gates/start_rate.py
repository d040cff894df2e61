"""The rate at which jobs start: a token bucket, of which this member of a group may have only a share.

Invariant: over any stretch of time no more works start than the rate allows, plus one burst of a twentieth of a second
(or one work).
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headway.execution.gate import Gate
from headway.execution.jobs import Job

GROUP: Final = "group"
"""The name of the group's rate among those that members lend each other."""

_BURST = 0.05  # seconds' worth of the rate: a wake-up that comes this late costs no start
_MUCH = 0.7  # of the rate: a member that starts more, and has works left, is limited by it
_GRAIN = 0.01  # wait for this many seconds' worth at a time, or one work: one wait costs as much as many works
_ROUNDING = 1e-9


class StartRate(Gate):
    """A rate per second.

    >>> rate = StartRate(2)
    >>> rate.may_start(running=0, now=0.0), rate.started([None], running=1, now=0.0)
    (True, False)
    >>> rate.may_start(running=1, now=0.0), rate.opens_at(), rate.may_start(running=1, now=0.5)
    (False, 0.5, True)
    """

    def __init__(self, rate: float) -> None:
        self._limit_of_all = rate
        self._rate = rate  # this member's share of it
        self._burst = max(1.0, rate * _BURST)
        self._tokens = self._burst
        self._filled_at = -math.inf
        self._started = 0  # since `needs` was last asked

    def may_start(self, running: int, now: float) -> bool:
        """Return whether the rate allows one more start."""
        return self.allowed(now) >= 1

    def opens_at(self) -> float | None:
        """Return when the rate allows the next starts; None if this member has no share of it."""
        if not self._rate:
            return None
        if self._tokens >= 1:
            return -math.inf
        return self._filled_at + (max(1.0, self._rate * _GRAIN) - self._tokens) / self._rate

    def started(self, job: Job, running: int, now: float) -> bool:
        """Charge each work of the job."""
        self._tokens -= len(job)
        self._started += len(job)
        return False

    def allowed(self, now: float) -> int:
        """Return how many works the rate allows to start now."""
        if not self._rate:
            return 0
        self._fill(now)
        return int(self._tokens + _ROUNDING)

    @property
    def is_shared(self) -> bool:
        """True: the rate is the group's, and this member may have a share of it."""
        return True

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return the fraction of the rate that was used in the last `seconds`, and how much waits for it, per second.

        `ready` works could start if the rate let them.
        """
        started, self._started = self._started, 0
        # A permit that has just come does not mean plenty, nor does one that a busy machine has not used yet.
        hungry = ready > 0 and (not self.may_start(0, now) or started >= _MUCH * seconds * self._rate)
        if not started and not hungry:
            return {}
        return {GROUP: (started / seconds / self._limit_of_all, ready / self._limit_of_all if hungry else 0.0)}

    def share(self, share: float, now: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Use this share of the rate, from 0 for none to 1 for all of it; one in `others` takes precedence."""
        self._fill(now)
        self._rate = self._limit_of_all * others.get(GROUP, share)
        self._burst = max(1.0, self._rate * _BURST)
        self._tokens = min(self._tokens, self._burst)

    def _fill(self, now: float) -> None:
        if now > self._filled_at:
            if self._rate:  # after no time at all an infinite wait would be worth nothing
                self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
            self._filled_at = now
