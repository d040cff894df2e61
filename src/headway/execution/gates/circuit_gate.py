"""The circuit breaker: while nearly all attempts fail, one record at a time is tried, and its failures do not count."""

import logging
import math
import threading
from collections.abc import Hashable, Mapping
from typing import Any

from headway.core.engine.circuit import Circuit, CircuitBreaker, may_concern_all
from headway.core.retry import Again, Verdict, failure_behind
from headway.core.user_errors import description_of
from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordWork

log = logging.getLogger(__name__)

# Failures of a record that do not count because the circuit is open. Without a bound, a record that always fails would
# be tried forever.
_MOST_UNCOUNTED = 50
_AFTER_AN_OUTAGE = 1.0  # seconds until the next attempt at a record that would have become a dead letter


class CircuitGate(Gate):
    """The gate of a circuit breaker, which also logs when the circuit opens and closes."""

    def __init__(self, bounds: CircuitBreaker) -> None:
        self._circuit = Circuit(bounds)
        self._last_error: BaseException | None = None  # the failure that opened it, until that is logged
        self._logged_open = False
        self._logging = threading.Lock()

    @property
    def is_open(self) -> bool:
        """True while only one record at a time is tried."""
        return self._circuit.is_open

    def slots(self, slots: int) -> int:
        """Return 1 while the circuit is open.

        The engine computes the fraction of retries from this number. With more slots, every probe could be one of a few
        records that always fail, and the circuit would stay open although all other records could succeed.
        """
        return 1 if self._circuit.is_open else slots

    def may_start(self, running: int, now: float) -> bool:
        """Return whether the circuit is closed, or its next probe can start."""
        return self._circuit.allows(now)

    def opens_at(self) -> float | None:
        """Return when the next probe can start, or None while one is running."""
        return self._circuit.next_probe() if self._circuit.is_open else -math.inf

    def batch_size(self, size: int) -> int:
        """Return 1 while the circuit is open, because one bad record would fail every probe of a whole batch."""
        return 1 if self._circuit.is_open else size

    def started(self, job: Job, running: int, now: float) -> bool:
        """If the circuit is open, note the job as its probe."""
        self._circuit.started(job)
        return False

    def judged(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Count a failure. While the circuit is open, the record is tried again, and the attempt does not count."""
        if not may_concern_all(error, verdict):
            return verdict
        was_open = self._circuit.is_open
        if not self._circuit.failed(_key_of(work), work, now):
            return verdict
        if not was_open:
            self._last_error = error
        if work.untried >= _MOST_UNCOUNTED:
            return verdict
        if isinstance(verdict, Again):
            return verdict._replace(untried=True)
        return Again(min(now + _AFTER_AN_OUTAGE, max(now, work.not_after)), untried=True)

    def done(self, work: RecordWork, now: float) -> bool:
        """Count a success for the circuit, unless the handler was not called because the record expired or failed."""
        if not work.outcome:
            self._circuit.succeeded(_key_of(work), work, now)
        return False

    def ended(self, work: RecordWork, running: int, now: float) -> bool:
        """Return whether the end of this probe has closed the circuit, so that all slots can be used again."""
        return self._circuit.ended(work, now)

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log that the circuit has opened, with the last failure, or that it has closed."""
        if self._circuit.is_open == self._logged_open:
            return
        with self._logging:  # the first thread logs a change, and others find it logged
            is_open = self._circuit.is_open
            if is_open == self._logged_open:
                return
            self._logged_open = is_open
            error, self._last_error = self._last_error, None
        if is_open:
            failed, keys = self._circuit.opened_with
            last = f" The last: {description_of(failure_behind(error))}" if error else ""
            log.warning(
                "The circuit breaker is open: %d of %d keys failed. One attempt at a time is made until some "
                "succeed again, and failed ones do not count.%s",
                failed,
                keys,
                last,
            )
        else:
            log.warning("The circuit breaker is closed: attempts succeed again, and all slots are used.")

    def metrics(self) -> Mapping[str, Any]:
        """Return whether the circuit is open."""
        return {"circuit_open": self._circuit.is_open}


def _key_of(work: RecordWork) -> Hashable:
    """Return the key that a record counts for. A record without a key counts for itself."""
    key = work.record.raw_key
    return (work.partition, work.offset) if key is None else key
