"""Delays the next try to store a record as a dead letter or schedule after Kafka has refused one."""

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.core.refusal_pause import RefusalPause
from headway.execution.jobs import RecordAttempt


class Reports(Protocol):
    """Receives the reports about records that were sent as dead letters or schedules."""

    def stored(self, attempt: RecordAttempt) -> None:
        """Report that Kafka has stored the record."""

    def not_stored(self, attempt: RecordAttempt, again_at: float) -> None:
        """Report that the record was not stored and must be sent again at `again_at`, a time of the monotonic clock."""


class Postponement:
    """Computes the pause before the next try to store a record. The pause grows with each refusal. Thread-safe.

    Args:
        reports: Receives each record that was not stored, with the time of the next try.
        warn: Called with the reason of the first refusal, and occasionally with the reason of a later refusal.
    """

    def __init__(self, reports: Reports, warn: Callable[[str], None]) -> None:
        self._reports = reports
        self._warn = warn
        self._pause = RefusalPause()
        self._lock = threading.Lock()  # protects `_pause`

    def is_over(self) -> bool:
        """Return whether the pause is over, so that records can be sent now."""
        return self._pause.allows(time.monotonic())

    def postpone(self, attempt: RecordAttempt) -> None:
        """Report that a record was not stored and must wait until the pause is over."""
        self._reports.not_stored(attempt, self._pause.again_at)

    def refused(self, attempt: RecordAttempt, reason: str) -> None:
        """Report that Kafka refused a record, and begin a pause."""
        with self._lock:
            warns = self._pause.refused(time.monotonic(), random.random())  # noqa: S311 - it spreads retries over time
        if warns:
            self._warn(reason)
        self.postpone(attempt)
