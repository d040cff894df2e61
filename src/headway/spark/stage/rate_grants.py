"""One rate shared by all tasks of a stage: tasks ask for starts, and are granted them in turn.

Fixed shares of the rate would not do: no task knows how many others there are, since they come and go with each
micro-batch, and the unused share of a task with little to do would be lost to the others.

Invariant: over any period no more starts are granted than the rate allows, plus one burst of a tenth of a
second (or one start).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from headway.execution.gate import Gate
from headway.execution.jobs import Job

T = TypeVar("T", bound=Hashable)

_BURST = 0.1  # seconds; this much of the rate may be granted at once
_GRAIN = 0.01  # seconds; wait until this much of the rate can be granted, or one start: each grant is a message
_ROUNDING = 1e-9  # starts; more than the rounding errors of sums, so that a start is not delayed by one


class Grants(Generic[T]):
    """Divides the starts that a rate allows, per second, among the tasks that ask for some.

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
        """Note how many starts a task wants, in place of its earlier request."""
        self._asked[who] = starts

    def leave(self, who: T) -> None:
        """Drop the request of a task that has ended."""
        self._asked.pop(who, None)

    def due(self, now: float) -> Sequence[tuple[T, int]]:
        """Return the starts granted now, the longest-waiting task first. A task must ask again for more."""
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
        """Return the time at which more can be granted; None without a request."""
        return self._filled_at + max(0.0, self._least() - self._left) / self._rate if self._asked else None

    def _least(self) -> float:
        """Return the fewest starts granted at a time: a message with one start costs as much as one with many."""
        return max(1.0, min(self._rate * _GRAIN, sum(self._asked.values())))


class GrantedStarts(Gate):
    """The gate of one task, which starts no more works than it was granted.

    `ready` returns how many works could start now. `ask` requests starts for them, at most `slots`, and `grant` takes
    the answer.
    """

    def __init__(self, slots: int, *, ready: Callable[[float], int], ask: Callable[[int], None]) -> None:
        self._slots = slots
        self._ready = ready
        self._ask = ask
        self._granted = 0  # below 0 after a batch of more works than starts were granted
        self._is_asking = False

    def may_start(self, running: int, now: float) -> bool:
        """Return whether a start is granted. Requests more if there is none for works that could start."""
        if self._granted > 0:
            return True
        if not self._is_asking and (ready := self._ready(now)):
            self._is_asking = True
            self._ask(min(ready, self._slots) - self._granted)
        return False

    def started(self, job: Job, running: int, now: float) -> bool:
        """Use up a grant for each work."""
        self._granted -= len(job)
        return False

    def grant(self, starts: int) -> None:
        """Add the starts that were granted."""
        self._is_asking = False
        self._granted += starts
