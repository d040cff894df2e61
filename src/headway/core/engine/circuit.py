"""The circuit breaker of a consumer's handler: while nearly everything fails, one attempt at a time is enough.

A failure can be its record's, or of what all records need: the bank is down. Then each attempt fails, and each
record would end as a dead letter. The circuit is closed as long as attempts go well. It opens when of the keys tried in
the last seconds a set part has failed, and then lets one attempt at a time through, a probe, at growing intervals.

Invariants: a key counts once, by its last attempt, so neither a record nor the records of a key open the circuit alone.
While it is open at most one probe runs. It closes after `_GOOD` probes in a row that went well. Without time passing
nothing changes but by a report.
"""

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

from headway.core.retry import Again, DeadLetter, Verdict
from headway.declarations import check_number, check_whole, is_number, shown
from headway.errors import ConfigError, ProcessDiedError, RetryLater

_FIRST_WAIT = 1.0  # seconds before the first probe
_GOOD = 3  # probes in a row that close the circuit
_MOST_KEYS = 10_000  # that are remembered, the last ones


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The bounds by which a consumer slows down to one attempt at a time, instead of failing all records.

    Args:
        failing: The fraction of keys, up to 1, at which it opens: of those tried in the window, the ones whose last
            attempt failed.
        least: The number of failing keys below which it never opens. A record without a key counts as one.
        window: The seconds that count.
        longest: The seconds between two probes at most; the first waits are 1, 2, 4 … seconds.

    Raises `ConfigError` for bounds that cannot be.
    """

    failing: float = 0.5
    least: int = 10
    window: float = 30.0
    longest: float = 60.0

    def __post_init__(self) -> None:
        if not is_number(self.failing) or not 0 < self.failing <= 1:
            raise ConfigError(f"failing is {shown(self.failing)}; it must be a number above 0, and at most 1.")
        check_whole("least", self.least, 2)
        if self.least > _MOST_KEYS:
            raise ConfigError(f"least is {self.least}; it must be at most {_MOST_KEYS:,}.")
        check_number("window", self.window, 0.1, " seconds")
        check_number("longest", self.longest, _FIRST_WAIT, " seconds")


def may_concern_all(error: BaseException, verdict: Verdict) -> bool:
    """Return whether an attempt may have failed because of what all records need, and so counts for the circuit.

    `FatalError`, `RetryLater` and an untried attempt are what a handler says of its record alone. The death of a
    process is judged by what else ran in it, and each one brings a record nearer to its end.

    >>> may_concern_all(OSError(), Again(0.0)), may_concern_all(OSError(), DeadLetter("attempt 3 of 3 failed", True))
    (True, True)
    >>> may_concern_all(OSError(), Again(0.0, untried=True)), may_concern_all(KeyError(), DeadLetter("not retried"))
    (False, False)
    """
    if issubclass(type(error), (ProcessDiedError, RetryLater)):  # `isinstance` would ask the error for its class
        return False
    if isinstance(verdict, DeadLetter):
        return verdict.tried_out
    return isinstance(verdict, Again) and not verdict.untried


class Circuit:
    """The state of one circuit; times are in seconds of one clock. Attempts are known by any object of theirs.

    >>> circuit = Circuit(CircuitBreaker(least=2))
    >>> [circuit.failed(key, key, now=100.0) for key in ("a", "a", "b")]
    [False, False, True]
    >>> circuit.allows(100.5), circuit.allows(101.0)
    (False, True)
    """

    def __init__(self, bounds: CircuitBreaker) -> None:
        self._bounds = bounds
        self._last: dict[Hashable, tuple[bool, float]] = {}  # of each key whether it failed, the latest last
        self._failing = 0
        self.is_open = False
        self.opened_with = (0, 0)  # keys that failed, and all
        self._probe: set[Any] = set()  # the attempts of the probe that runs
        self._results: list[bool] = []  # of those of them that have ended
        self._probe_at = -math.inf
        self._wait = _FIRST_WAIT
        self._good = 0

    def allows(self, now: float) -> bool:
        """Return whether an attempt may start now; while the circuit is open it is the next probe."""
        return not self.is_open or (not self._probe and now >= self._probe_at)

    def next_probe(self) -> float | None:
        """Return when the next probe may start; None while one runs."""
        return None if self._probe else self._probe_at

    def started(self, attempts: Collection[Any]) -> None:
        """Note that these attempts have started together."""
        if self.is_open:
            self._probe, self._results = set(attempts), []

    def succeeded(self, key: Hashable, attempt: Any, now: float) -> None:
        """Note that an attempt at a record of this key went well."""
        if not self.is_open:
            self._note(key, False, now)
        elif attempt in self._probe:
            self._results.append(True)

    def failed(self, key: Hashable, attempt: Any, now: float) -> bool:
        """Note that an attempt failed; return whether the circuit is open, so that this may be no fault of a record."""
        if not self.is_open:
            self._note(key, True, now)
            if self._failing >= self._bounds.least and self._failing >= self._bounds.failing * len(self._last):
                self._open(now)
        elif attempt in self._probe:
            self._results.append(False)
        return self.is_open

    def ended(self, attempt: Any, now: float) -> bool:
        """Note that an attempt is over, whatever came of it; return whether this has closed the circuit."""
        if attempt not in self._probe:
            return False
        self._probe.discard(attempt)
        if self._probe:
            return False
        if not all(self._results):
            self._good = 0
            self._wait = min(self._bounds.longest, 2 * self._wait)
        elif self._results:
            self._good += 1
            self._wait = _FIRST_WAIT
            self._probe_at = now
            if self._good >= _GOOD:
                self._close()
                return True
            return False
        self._probe_at = now + self._wait  # where nothing was learnt, too
        return False

    def _note(self, key: Hashable, has_failed: bool, now: float) -> None:
        before = self._last.pop(key, None)
        self._failing += has_failed - (before is not None and before[0])
        self._last[key] = has_failed, now
        while self._is_old(first := next(iter(self._last)), now):
            self._failing -= self._last.pop(first)[0]

    def _is_old(self, key: Hashable, now: float) -> bool:
        return self._last[key][1] < now - self._bounds.window or len(self._last) > _MOST_KEYS

    def _open(self, now: float) -> None:
        self.is_open, self.opened_with = True, (self._failing, len(self._last))
        self._good, self._wait = 0, _FIRST_WAIT
        self._probe_at = now + _FIRST_WAIT
        self._forget()

    def _close(self) -> None:
        self.is_open = False
        self._forget()

    def _forget(self) -> None:
        self._last.clear()
        self._failing = 0
        self._probe = set()
