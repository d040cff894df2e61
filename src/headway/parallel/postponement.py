"""The pauses in storing records that are not handled now: dead letters, and records to be tried again later."""

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.core.refusal_pause import RefusalPause
from headway.execution.jobs import RecordWork


class Reports(Protocol):
    """The receiver of reports about stored records."""

    def stored(self, work: RecordWork) -> None:
        """Take note that Kafka has the record."""

    def not_stored(self, work: RecordWork, again_at: float) -> None:
        """Take note that Kafka does not take the record; send it again at this time, by the monotonic clock."""


class Postponement:
    """The growing pauses between tries to store records, for any thread.

    Args:
        reports: The receiver of each refusal, with the time of the next try.
        tell: Warns of a refusal; called for the first one, and now and then for later ones.
    """

    def __init__(self, reports: Reports, tell: Callable[[str], None]) -> None:
        self._reports = reports
        self._tell = tell
        self._pause = RefusalPause()
        self._lock = threading.Lock()  # for the pause

    def is_over(self) -> bool:
        """Return whether a record may be tried now."""
        return self._pause.allows(time.monotonic())

    def postpone(self, work: RecordWork) -> None:
        """Report a record that is not tried now."""
        self._reports.not_stored(work, self._pause.again_at)

    def refused(self, work: RecordWork, reason: str) -> None:
        """Report a record that Kafka did not take; the pause begins."""
        with self._lock:
            is_told = self._pause.refused(time.monotonic(), random.random())  # noqa: S311 - it spreads retries
        if is_told:
            self._tell(reason)
        self.postpone(work)
