"""The circuit breaker of a consumer's handler: while most attempts fail, the consumer makes only one attempt at a time.

An attempt can fail because of its record, or because a service that all records need is down. In the second case, every
record would become a dead letter. The circuit is closed while attempts succeed. The circuit opens when a given fraction
of the keys that were tried in the last seconds has failed. An open circuit allows only probes: one attempt at a time,
at growing intervals.

Invariants: each key counts once, by the outcome of its last attempt, so the failures of a single key cannot open the
circuit. While the circuit is open, at most one probe runs. The circuit closes after `_GOOD` successful probes in a row.
Only reports change the state; `allows` does not.
"""

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

from headway.core.retry import Again, GiveUp, Verdict
from headway.declarations import check_number, check_whole, is_number, shown
from headway.errors import ConfigError, ProcessDiedError, RetryLater

_FIRST_WAIT = 1.0  # how long to wait before the first probe, in seconds
_GOOD = 3  # this many successful probes in a row close the circuit
_MOST_KEYS = 10_000  # the maximum number of keys to remember; if there are more, the oldest are forgotten


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """When most attempts fail, make one attempt at a time instead of failing every record.

    Args:
        failing: The circuit opens when this fraction of the keys that were tried in the window has failed. A key counts
            as failed if its last attempt failed. The fraction must be above 0 and at most 1.
        least: The circuit never opens while fewer keys than this have failed. Each record without a key counts as a
            key.
        window: The number of seconds for which an attempt counts.
        longest: The longest time between two probes, in seconds. The waits before the first probes are 1, 2, 4 …
            seconds.

    Raises `ConfigError` for a value outside the allowed range.
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
    """Return whether a failure might have a cause that affects all records, so that the circuit must count the failure.

    By raising `FatalError` or `RetryLater`, or by leaving the attempt untried, a handler reports a problem of this
    record only. The death of a process does not count either, because the records that were running in the process are
    investigated separately (`suspects.py`).

    >>> may_concern_all(OSError(), Again(0.0)), may_concern_all(OSError(), GiveUp("attempt 3 of 3 failed", True))
    (True, True)
    >>> may_concern_all(OSError(), Again(0.0, untried=True)), may_concern_all(KeyError(), GiveUp("not retried"))
    (False, False)
    """
    # not `isinstance`, which would run code of the error's own `__class__`
    if issubclass(type(error), (ProcessDiedError, RetryLater)):
        return False
    if isinstance(verdict, GiveUp):
        return verdict.tried_out
    return isinstance(verdict, Again) and not verdict.untried


class Circuit:
    """The state of one circuit. All times are in seconds of one clock. Any hashable object can identify an attempt.

    >>> circuit = Circuit(CircuitBreaker(least=2))
    >>> [circuit.failed(key, key, now=100.0) for key in ("a", "a", "b")]
    [False, False, True]
    >>> circuit.allows(100.5), circuit.allows(101.0)
    (False, True)
    """

    def __init__(self, bounds: CircuitBreaker) -> None:
        self._bounds = bounds
        # For each key, whether its last attempt failed, and when that attempt ended. The key that was tried last is at
        # the end.
        self._last: dict[Hashable, tuple[bool, float]] = {}
        self._failing = 0
        self.is_open = False
        self.opened_with = (0, 0)  # the number of failing keys, and of all keys
        self.forced: bool | None = None  # whether an operator keeps it open, or closed; None if nobody does
        self.closings = 0  # how often it has closed
        self.failures_since = -math.inf  # since when the failures count that have opened it last
        self._probe: set[Any] = set()  # the attempts of the running probe; if the probe is a batch, there are several
        self._results: list[bool] = []  # for each attempt of the probe that has a result so far, whether it succeeded
        self._probe_at = -math.inf
        self._wait = _FIRST_WAIT
        self._good = 0

    def allows(self, now: float) -> bool:
        """Return whether an attempt may start now. If the circuit is open, this attempt becomes the next probe."""
        return not self.is_open or (not self._probe and now >= self._probe_at)

    def next_probe(self) -> float | None:
        """Return when the next probe may start, or None while a probe runs."""
        return None if self._probe else self._probe_at

    def started(self, attempts: Collection[Any]) -> None:
        """Record that one attempt, or all attempts of a batch, have started."""
        if self.is_open:
            self._probe, self._results = set(attempts), []

    def force(self, is_open: bool | None, now: float) -> None:
        """Keep the circuit open or closed from now on. With None, attempts decide again."""
        self.forced = is_open
        if is_open and not self.is_open:
            self._open(now)
        elif is_open is False and self.is_open:
            self._close()

    def succeeded(self, key: Hashable, attempt: Any, now: float) -> None:
        """Record that an attempt at a record with this key succeeded."""
        if not self.is_open:
            self._note(key, False, now)
        elif attempt in self._probe:
            self._results.append(True)

    def failed(self, key: Hashable, attempt: Any, now: float) -> bool:
        """Record that an attempt failed. Returns whether the circuit is open now.

        If the circuit is open, the record might not be the cause of the failure.
        """
        if not self.is_open:
            self._note(key, True, now)
            if (
                self.forced is not False
                and self._failing >= self._bounds.least
                and self._failing >= self._bounds.failing * len(self._last)
            ):
                self._open(now)
        elif attempt in self._probe:
            self._results.append(False)
        return self.is_open

    def ended(self, attempt: Any, now: float) -> bool:
        """Record that an attempt has ended, with any outcome. Returns whether this has closed the circuit."""
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
            if self._good >= _GOOD and not self.forced:
                self._close()
                return True
            return False
        self._probe_at = now + self._wait  # a probe without a result, such as an untried attempt, also ends here
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
        self.failures_since = now - self._bounds.window
        self._good, self._wait = 0, _FIRST_WAIT
        self._probe_at = now + _FIRST_WAIT
        self._forget()

    def _close(self) -> None:
        self.is_open = False
        self.closings += 1
        self._forget()

    def _forget(self) -> None:
        self._last.clear()
        self._failing = 0
        self._probe = set()
