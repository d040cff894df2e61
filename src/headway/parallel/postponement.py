"""Pauses between attempts to store dead letters, or records to be retried later, while Kafka refuses them."""

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.core.refusal_pause import RefusalPause
from headway.execution.jobs import RecordWork


class Reports(Protocol):
    """Receives reports about records that were sent to be stored."""

    def stored(self, work: RecordWork) -> None:
        """Record that Kafka has stored the record."""

    def not_stored(self, work: RecordWork, again_at: float) -> None:
        """Record that the record was not stored and must be sent again at this time of the monotonic clock."""


class Postponement:
    """Growing pauses between attempts to store records. Thread-safe.

    Args:
        reports: Receives each refusal, with the time of the next attempt.
        warn: Called with the reason of the first refusal, and now and then of later ones.
    """

    def __init__(self, reports: Reports, warn: Callable[[str], None]) -> None:
        self._reports = reports
        self._warn = warn
        self._pause = RefusalPause()
        self._lock = threading.Lock()  # for the pause

    def is_over(self) -> bool:
        """Return whether an attempt is allowed now."""
        return self._pause.allows(time.monotonic())

    def postpone(self, work: RecordWork) -> None:
        """Report that a record must wait for the end of the pause."""
        self._reports.not_stored(work, self._pause.again_at)

    def refused(self, work: RecordWork, reason: str) -> None:
        """Report that Kafka refused a record, and begin a pause."""
        with self._lock:
            warns = self._pause.refused(time.monotonic(), random.random())  # noqa: S311 - it spreads retries
        if warns:
            self._warn(reason)
        self.postpone(work)
