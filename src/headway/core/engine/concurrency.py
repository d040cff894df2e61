"""The limit on works that run at a time, and on works that start per second.

Invariants: never more works are let in than `limit` allows, and `limit` is from 1 to the most allowed. Over any stretch
of time no more start than the rate allows, plus one burst of a twentieth of a second (or one work).
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GROUP: Final = "group"
"""The name of the group's rate among those that members lend each other."""

_BURST = 0.05  # seconds' worth of the rate
_MUCH = 0.7  # of the rate: who starts more, and has works left, is limited by it
_GRAIN = 0.01  # wait for so many seconds' worth at a time, or one work: one wait costs as much as many works

# One look at the throughput takes at least _WINDOW seconds, _ROUNDS works for each slot, and _WORKS works.
_WINDOW = 0.2
_ROUNDS = 4
_WORKS = 100
_FIRST_LIMIT = 8
_FIRST_STEP = 2.0  # the step until more slots do not pay for the first time
_STEP = 1.25
# More slots pay if the throughput grows with at least this power of them; 1 is in proportion, 0 not at all.
_PAYS = 0.5
# At the most allowed no other limit is tried; a throughput that changed by this factor makes fewer be tried again.
_ANOTHER_SERVICE = 1.2


class Concurrency:
    """A limit, and a rate per second if one is given, of which this engine may have only a share.

    >>> admission = Concurrency(10, rate=100)
    >>> admission.free(running=4, now=0.0)
    5
    >>> admission.started(5, running=9, now=0.0)
    >>> admission.free(running=9, now=0.0), admission.next_change(), admission.free(9, 0.01)
    (0, 0.01, 1)
    """

    def __init__(self, most: int, *, rate: float | None = None, adaptive: bool = False) -> None:
        self.limit = most
        self.is_paced = adaptive or rate is not None  # if False, `limit` alone decides
        self._adaptive = AdaptiveLimit(most) if adaptive else None
        if self._adaptive:
            self.limit = self._adaptive.limit
        self._limit_of_all = rate
        self._rate = rate  # this engine's share of it
        self._burst = max(1.0, (rate or 0.0) * _BURST)
        self._tokens = self._burst
        self._filled_at = -math.inf
        self._started = 0  # since `needs` was last asked

    @property
    def is_shared(self) -> bool:
        """True if there is a rate, of which this engine may have a share."""
        return self._limit_of_all is not None

    def free(self, running: int, now: float) -> int:
        """Return how many works may start now."""
        free = self.limit - running
        if self._rate is None:
            return free
        if self._rate == 0:
            return 0
        self._fill(now, self._rate)
        return min(free, int(self._tokens + 1e-9))

    def started(self, count: int, running: int, now: float) -> None:
        """Note that `count` works have started, and that `running` run now."""
        if self._rate is not None:
            self._tokens -= count
            self._started += count
        if self._adaptive:
            self._adaptive.runs(running, now)

    def ended(self, running: int, now: float) -> None:
        """Note that a work has ended, and that `running` still run."""
        if self._adaptive:
            self._adaptive.ended(running, now)
            self.limit = self._adaptive.limit

    def next_change(self) -> float | None:
        """Return when to look again, if only the rate hinders the next work."""
        if not self._rate or self._tokens >= 1:
            return None
        return self._filled_at + (max(1.0, self._rate * _GRAIN) - self._tokens) / self._rate

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return the fraction of the rate that was used in the last `seconds`, and what waits for it, by second.

        `ready` works could start if the rate let them.
        """
        if not self._limit_of_all:
            return {}
        started, self._started = self._started, 0
        # A permit that has just come is no sign of plenty, nor is one that a busy machine has not used yet.
        hungry = ready > 0 and (self.free(0, now) < 1 or started >= _MUCH * seconds * (self._rate or 0.0))
        if not started and not hungry:
            return {}
        return {GROUP: (started / seconds / self._limit_of_all, ready / self._limit_of_all if hungry else 0.0)}

    def share(self, share: float, now: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Have this share of the rate from now on, from 0 for none to 1 for all of it; one in `others` goes before."""
        share = others.get(GROUP, share)
        if self._limit_of_all is None or self._rate is None:
            return
        self._fill(now, self._rate)
        self._rate = self._limit_of_all * share
        self._burst = max(1.0, self._rate * _BURST)
        self._tokens = min(self._tokens, self._burst)

    def _fill(self, now: float, rate: float) -> None:
        if now > self._filled_at:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * rate)
            self._filled_at = now


class AdaptiveLimit:
    """A limit that grows while throughput grows with it, and shrinks while throughput does not shrink with it.

    Each look compares the throughput at this limit with that at the last limit, and goes a step up or down. So an old
    measurement of a service is soon forgotten. Around the best limit the limit goes to and fro by a step. Only time in
    which all slots are taken counts: other time says nothing about more slots.
    """

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST_LIMIT, most)
        self._most = most
        self._step = _FIRST_STEP
        self._last: tuple[int, float] | None = None  # a limit and the throughput that it had
        self._at_most: float | None = None  # the throughput when the limit came to be the most
        self._running = 0
        self._at = 0.0
        self._begin()

    def runs(self, running: int, now: float) -> None:
        """Note that `running` works run from now on."""
        if self._running >= self.limit:
            self._seconds += now - self._at
        self._running, self._at = running, now

    def ended(self, running: int, now: float) -> None:
        """Note that a work has ended, and that `running` still run."""
        counts = self._running >= self.limit
        self.runs(running, now)
        if not counts:
            return
        self._ended += 1
        if not self._settled:
            self._begin(settled=self._ended >= self.limit, ended=self._ended)
        elif self._ended >= max(_WORKS, _ROUNDS * self.limit) and self._seconds >= _WINDOW:
            self._look(self._ended / self._seconds)
            self._begin()

    def _begin(self, *, settled: bool = False, ended: int = 0) -> None:
        # The first works to end in each slot were started at the last limit.
        self._settled = settled
        self._ended = 0 if settled else ended
        self._seconds = 0.0

    def _look(self, throughput: float) -> None:
        up = self._last is None or _pays(self._last, (self.limit, throughput))
        if self.limit < self._most:
            self._at_most = None
        elif self._at_most is None:
            self._at_most = throughput
        elif abs(math.log(throughput / self._at_most)) > math.log(_ANOTHER_SERVICE):
            up = False  # the service has changed, so the measurement with fewer slots is outdated
        if not up:
            self._step = _STEP
        step = self._step if up or self.limit == 1 else 1 / self._step
        limit = min(self._most, math.ceil(self.limit * step) if step > 1 else int(self.limit * step))
        if limit != self.limit:  # at the most allowed, keep the measurement with fewer slots
            self._last = self.limit, throughput
            self.limit = limit


def _pays(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Return whether the throughput of two limits grows with them."""
    (limit, throughput), (other_limit, other_throughput) = sorted((one, other))
    return math.log(other_throughput / throughput) >= _PAYS * math.log(other_limit / limit)
