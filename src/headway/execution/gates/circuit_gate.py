"""The circuit breaker. While most attempts fail, only one record at a time is tried, and failures use up no retries."""

import logging
import math
import threading
from collections.abc import Hashable, Mapping
from typing import Any

from headway.core.engine.circuit import Circuit, CircuitBreaker, may_concern_all
from headway.core.retry import Again, GiveUp, Verdict, failure_behind
from headway.core.user_errors import description_of
from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt

log = logging.getLogger(__name__)

# How many failed attempts of a record are not counted as retries because the circuit is open. Without this bound, a
# record that always fails would be tried forever.
_MOST_UNCOUNTED = 50
# Delay before the next attempt at a record that would otherwise become a dead letter, in seconds.
_AFTER_AN_OUTAGE = 1.0


class CircuitGate(Gate):
    """Lets only one attempt at a time run while the circuit is open. Logs when the circuit opens and closes."""

    def __init__(self, bounds: CircuitBreaker) -> None:
        self._circuit = Circuit(bounds)
        self._last_error: BaseException | None = None  # the failure that opened the circuit, until it is logged
        self._logged_open = False
        self._logging = threading.Lock()  # protects `_logged_open`

    @property
    def is_open(self) -> bool:
        """True while only one record at a time is tried."""
        return self._circuit.is_open

    @property
    def closings(self) -> int:
        """How often the circuit has closed."""
        return self._circuit.closings

    def has_opened_it(self, attempt: RecordAttempt) -> bool:
        """Return whether a record failed for good while the circuit was open, or with the failures that opened it."""
        outcome, failure = attempt.outcome, attempt.failure
        if outcome is None or failure is None or not isinstance(outcome.verdict, GiveUp):
            return False
        return failure.at >= self._circuit.failures_since and may_concern_all(outcome.error, outcome.verdict)

    def force(self, is_open: bool | None, now: float) -> None:
        """Keep the circuit open or closed from now on. With None, attempts decide again."""
        self._circuit.force(is_open, now)

    def slots(self, slots: int) -> int:
        """Return 1 while the circuit is open.

        The engine derives from this number how many slots retries can use. If it were larger than 1, every probe could
        be a retry of one of a few records that always fail. The circuit would then stay open although all other records
        could succeed.
        """
        return 1 if self._circuit.is_open else slots

    def may_start(self, running: int, now: float) -> bool:
        """Return True if the circuit is closed, or if it is open and its next probe can start."""
        return self._circuit.allows(now)

    def opens_at(self) -> float | None:
        """Return when the next probe can start, or None while a probe is running."""
        return self._circuit.next_probe() if self._circuit.is_open else -math.inf

    def batch_size(self, size: int) -> int:
        """Return 1 while the circuit is open, because one bad record would make a probe with a whole batch fail."""
        return 1 if self._circuit.is_open else size

    def started(self, job: Job, running: int, now: float) -> bool:
        """Record that a job has started. While the circuit is open, the job is a probe."""
        self._circuit.started(job)
        return False

    def judged(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Count a failed attempt for the circuit.

        While the circuit is open, the record will be tried again, and this attempt does not count as one of its
        retries.
        """
        if not may_concern_all(error, verdict):
            return verdict
        was_open = self._circuit.is_open
        if not self._circuit.failed(_key_of(attempt), attempt, now):
            return verdict
        if not was_open:
            self._last_error = error
        if attempt.untried >= _MOST_UNCOUNTED:
            return verdict
        if isinstance(verdict, Again):
            return verdict._replace(untried=True)
        return Again(min(now + _AFTER_AN_OUTAGE, max(now, attempt.not_after)), untried=True)

    def done(self, attempt: RecordAttempt, now: float) -> bool:
        """Count a success for the circuit, unless the record is done because it expired or became a dead letter."""
        if not attempt.outcome:
            self._circuit.succeeded(_key_of(attempt), attempt, now)
        return False

    def ended(self, attempt: RecordAttempt, running: int, now: float) -> bool:
        """Return whether this attempt was a probe whose success has closed the circuit."""
        return self._circuit.ended(attempt, now)

    def log(self, now: float, *, at_end: bool = False) -> None:
        """If the circuit has opened or closed since the last call, log that, with the failure that opened it."""
        if self._circuit.is_open == self._logged_open:
            return
        with self._logging:  # only one thread must log each change
            is_open = self._circuit.is_open
            if is_open == self._logged_open:
                return
            self._logged_open = is_open
            error, self._last_error = self._last_error, None
            forced = self._circuit.forced
        if forced is not None:
            log.warning("The circuit breaker is %s, because of a rule.", "open" if is_open else "closed")
        elif is_open:
            failed, keys = self._circuit.opened_with
            last = f" The last failure: {description_of(failure_behind(error))}" if error else ""
            log.warning(
                "The circuit breaker is open, because %d of %d keys failed. Until some attempts succeed again, one "
                "attempt is made at a time, and failed attempts do not count.%s",
                failed,
                keys,
                last,
            )
        else:
            log.warning("The circuit breaker is closed, because attempts succeed again. All slots are used again.")

    def metrics(self) -> Mapping[str, Any]:
        """Return the metric `circuit_open`."""
        return {"circuit_open": self._circuit.is_open}


def _key_of(attempt: RecordAttempt) -> Hashable:
    """Return the key for which the circuit counts a record. A record without a key counts as a key of its own."""
    key = attempt.record.raw_key
    return (attempt.partition, attempt.offset) if key is None else key
