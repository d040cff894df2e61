"""Counts records that expired before they could be started, and drops them or makes them dead letters.

Only a record that is about to start is checked. A running handler is never interrupted.
"""

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headway.core.engine.attempt import FinalOutcome
from headway.core.retry import GiveUp
from headway.errors import ExpiredError
from headway.execution.context import wall_time
from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # the minimum time between two log lines, in seconds


class ExpiryGate(Gate):
    """Keeps expired records from starting. If `keeps` is true, they become dead letters; otherwise they are dropped."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps
        self._count = 0
        self._logged = 0
        self._log_at = -math.inf
        self._last: RecordAttempt | None = None

    def admit(self, job: Job, now: float) -> Job:
        """Return the attempts whose records have not expired.

        A record whose dead letter or schedule must be sent never expires.
        """
        expired = [attempt for attempt in job if attempt.not_after <= now and not attempt.outcome]
        if not expired:
            return job
        for attempt in expired:
            at = datetime.fromtimestamp(wall_time(attempt.not_after), UTC)
            error = ExpiredError(f"The record expired at {at:%Y-%m-%d %H:%M:%S} UTC, before it could be started.")
            attempt.outcome = FinalOutcome(error, GiveUp("it expired before it was started") if self._keeps else None)
        self._count += len(expired)
        self._last = expired[-1]
        return [attempt for attempt in job if attempt not in expired]

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log how many records have expired since the last log line. Logs at most once every 10 seconds."""
        count = self._count - self._logged
        if count and (at_end or now >= self._log_at):
            self._logged, self._log_at = self._count, now + _LOG_EVERY
            became = "became dead letters" if self._keeps else "were dropped"
            record = self._last and self._last.record
            log.info(
                "%d records expired before they could be started, and %s. The last of them: %r", count, became, record
            )

    def metrics(self) -> Mapping[str, Any]:
        """Return the metric `expired`, the number of expired records."""
        return {"expired": self._count}
