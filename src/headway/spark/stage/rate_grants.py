"""Divides one rate limit among all tasks of a stage: tasks request permits, and the driver grants them in turn.

A permit lets a task start one attempt.

Fixed shares of the rate would not work. A task does not know how many other tasks there are, because the number changes
with each micro-batch, and the other tasks could not use the share of a task that has little to do.

Invariant: in any period, no more permits are granted than the rate allows, plus one burst. A burst is a tenth of a
second's worth of permits, and at least one permit.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from headway.execution.gate import Gate
from headway.execution.jobs import Job

T = TypeVar("T", bound=Hashable)

_BURST = 0.1  # at most this many seconds' worth of permits can be granted at once
_GRAIN = 0.01  # wait until this many seconds' worth of permits can be granted, because each grant is a message
_ROUNDING = 1e-9  # a fraction of a permit; rounding errors are smaller, and must not delay a start


class Grants(Generic[T]):
    """Divides a rate limit, in starts per second, among the tasks that request permits.

    >>> grants = Grants(100, now=0.0)
    >>> grants.ask("a", 50), grants.ask("b", 2), grants.due(now=0.0)
    (None, None, [('a', 5), ('b', 2)])
    >>> grants.ask("a", 50), grants.due(now=0.0), grants.due(now=0.0), grants.next_due()
    (None, [('a', 3)], [], None)
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * _BURST)
        self._left = self._burst
        self._filled_at = now
        self._asked: OrderedDict[T, int] = OrderedDict()

    def ask(self, who: T, starts: int) -> None:
        """Record how many permits a task requests. This replaces the task's earlier request."""
        self._asked[who] = starts

    def leave(self, who: T) -> None:
        """Remove the request of a task that has ended."""
        self._asked.pop(who, None)

    def due(self, now: float) -> Sequence[tuple[T, int]]:
        """Return how many permits each task gets now, beginning with the task that has waited longest.

        A grant uses up the task's request, even if the grant is smaller than the request. For more permits, the task
        must send another request.
        """
        self._left = min(self._burst, self._left + (now - self._filled_at) * self._rate)
        self._filled_at = now
        granted: list[tuple[T, int]] = []
        if not self._asked or self._left + _ROUNDING < self._least():
            return granted
        while self._asked and self._left + _ROUNDING >= 1:
            part = max(1, int((self._left + _ROUNDING) / len(self._asked)))
            who, wanted = self._asked.popitem(last=False)
            granted.append((who, min(part, wanted)))
            self._left -= min(part, wanted)
        return granted

    def next_due(self) -> float | None:
        """Return the time at which more permits can be granted, or None if there are no requests."""
        return self._filled_at + max(0.0, self._least() - self._left) / self._rate if self._asked else None

    def _least(self) -> float:
        """Return the minimum number of permits that are granted together.

        Few large grants are cheaper than many small ones, because a message costs the same for any number of permits.
        """
        return max(1.0, min(self._rate * _GRAIN, sum(self._asked.values())))


class GrantedStarts(Gate):
    """A gate that lets a task start no more attempts than the driver has granted permits for.

    Args:
        slots: The maximum number of permits to request at a time.
        ready: Returns how many attempts could start at the given time.
        ask: Requests this many permits from the driver. The number of granted permits is passed to `grant`.
    """

    def __init__(self, slots: int, *, ready: Callable[[float], int], ask: Callable[[int], None]) -> None:
        self._slots = slots
        self._ready = ready
        self._ask = ask
        self._granted = 0  # negative after a batch with more attempts than there were permits
        self._is_asking = False

    def may_start(self, running: int, now: float) -> bool:
        """Return whether a permit is left. If not, requests permits for the attempts that could start now."""
        if self._granted > 0:
            return True
        if not self._is_asking and (ready := self._ready(now)):
            self._is_asking = True
            self._ask(min(ready, self._slots) - self._granted)
        return False

    def started(self, job: Job, running: int, now: float) -> bool:
        """Use up one permit for each attempt of the job."""
        self._granted -= len(job)
        return False

    def grant(self, starts: int) -> None:
        """Add the permits that were granted."""
        self._is_asking = False
        self._granted += starts
