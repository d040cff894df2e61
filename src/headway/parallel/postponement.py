"""Pauses in storing dead letters, and records that will be retried later, while Kafka refuses them."""

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.core.refusal_pause import RefusalPause
from headway.execution.jobs import RecordWork


class Reports(Protocol):
    """Receives reports about records that should be stored."""

    def stored(self, work: RecordWork) -> None:
        """Note that Kafka has the record."""

    def not_stored(self, work: RecordWork, again_at: float) -> None:
        """Note that Kafka refuses the record. Send it again at this time, by the monotonic clock."""


class Postponement:
    """Growing pauses between attempts to store records, for any thread.

    Args:
        reports: Receives each refusal, with the time of the next attempt.
        warn: Logs a refusal; called for the first one, and now and then for later ones.
    """

    def __init__(self, reports: Reports, warn: Callable[[str], None]) -> None:
        self._reports = reports
        self._warn = warn
        self._pause = RefusalPause()
        self._lock = threading.Lock()  # for the pause

    def is_over(self) -> bool:
        """Return whether a record can be tried now."""
        return self._pause.allows(time.monotonic())

    def postpone(self, work: RecordWork) -> None:
        """Report a record that is not tried now."""
        self._reports.not_stored(work, self._pause.again_at)

    def refused(self, work: RecordWork, reason: str) -> None:
        """Report a record that Kafka refused, and begin a pause."""
        with self._lock:
            warns = self._pause.refused(time.monotonic(), random.random())  # noqa: S311 - it spreads retries
        if warns:
            self._warn(reason)
        self.postpone(work)
