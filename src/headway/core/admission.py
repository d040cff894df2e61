"""How many works may run at a time, and how many may start in a second.

Invariants: never more run than `limit`, and `limit` is from 1 to the most allowed; over any stretch of time no more
start than the rate allows for it, plus one burst of a twentieth of a second (or one work).
"""

import math

_BURST = 0.05  # seconds' worth of the rate

# One look at the throughput takes at least so long (seconds), and so many works for each slot.
_WINDOW = 0.1
_ROUNDS = 3
# A latency up to this many times the best one known is as good as the best: throughput grows with the limit.
_GOOD = 1.3
_BAD = 1.8
_GROWTH = 1.25
_FIRST_LIMIT = 8
# The best latency is slowly forgotten, since what the works do can change for good.
_FORGET = 1.02


class Admission:
    """A limit, and a rate per second if one is given.

    >>> admission = Admission(10, rate=100)
    >>> admission.free(running=4, now=0.0)
    5
    >>> admission.started(5)
    >>> admission.free(running=9, now=0.0), admission.next_change(0.0), admission.free(9, 0.01)
    (0, 0.01, 1)
    """

    def __init__(self, most: int, *, rate: float | None = None, adaptive: bool = False) -> None:
        self.limit = most
        self._adaptive = AdaptiveLimit(most) if adaptive else None
        if self._adaptive:
            self.limit = self._adaptive.limit
        self._rate = rate
        self._burst = max(1.0, (rate or 0.0) * _BURST)
        self._tokens = self._burst
        self._filled_at: float | None = None

    def free(self, running: int, now: float) -> int:
        """How many works may start now."""
        free = self.limit - running
        if self._rate is None:
            return free
        self._fill(now, self._rate)
        return min(free, int(self._tokens + 1e-9))

    def started(self, count: int) -> None:
        """So many works have started."""
        if self._rate is not None:
            self._tokens -= count

    def ended(self, running: int, now: float) -> None:
        """A work has ended, and so many run on."""
        if self._adaptive:
            self._adaptive.ended(running, now)
            self.limit = self._adaptive.limit

    def next_change(self, now: float) -> float | None:
        """When the next work may start, if only the rate hinders it."""
        if self._rate is None or self._tokens >= 1:
            return None
        return now + (1 - self._tokens) / self._rate

    def _fill(self, now: float, rate: float) -> None:
        since = now if self._filled_at is None else self._filled_at
        self._filled_at = max(now, since)
        self._tokens = min(self._burst, self._tokens + max(0.0, now - since) * rate)


class AdaptiveLimit:
    """A limit that grows while throughput grows with it, and shrinks when only the latency does.

    The mean latency is what runs divided by the throughput (Little's law), so nothing has to be timed. What limits
    the throughput, a service behind the handlers or the handlers' own CPU, makes the latency grow when the limit
    is beyond it. Source: the idea of TCP Vegas, with a window instead of a round trip.
    """

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST_LIMIT, most)
        self._most = most
        self._best = math.inf
        self._since: float | None = None
        self._ended = 0
        self._running = 0.0

    def ended(self, running: int, now: float) -> None:
        """A work has ended, and so many run on."""
        if self._since is None:
            self._since = now
        self._ended += 1
        self._running += running + 1
        if self._ended >= _ROUNDS * self.limit and now - self._since >= _WINDOW:
            self._look(self._running / self._ended, (now - self._since) / self._ended)
            self._since, self._ended, self._running = now, 0, 0.0

    def _look(self, running: float, seconds_each: float) -> None:
        latency = running * seconds_each
        self._best = min(self._best * _FORGET, latency)
        if latency > _BAD * self._best:
            self.limit = max(1, int(self.limit * self._best * _GOOD / latency))
        elif latency <= _GOOD * self._best and running > self.limit / 2:  # idle slots say nothing about more of them
            self.limit = min(self._most, math.ceil(self.limit * _GROWTH))
