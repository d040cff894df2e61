"""What other threads report to the one that owns the engine."""

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from headway.core.work import Work
from headway.kafka.wake import Wake


class Report(NamedTuple):
    """A work's handler, or the delivery of its dead letter, has ended; `error` says how if not well."""

    work: Work[Any]
    error: BaseException | None


class Reports:
    """Reports that wait for the control thread, which they wake."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._reports: deque[Report] = deque()
        self._set = False

    def add(self, report: Report) -> None:
        """From any thread."""
        self.add_all((report,))

    def add_all(self, reports: Iterable[Report]) -> None:
        """From any thread; one wake for all."""
        self._reports.extend(reports)
        if not self._set:  # looked at after the reports are in, reset before they are taken: none is missed
            self._set = True
            with contextlib.suppress(OSError):  # the wake is closed: nobody waits for this handler any more
                self._wake.set()

    def take(self) -> list[Report]:
        """Those that came since the last time; for the control thread only."""
        self._set = False
        reports = self._reports
        return [reports.popleft() for _ in range(len(reports))]
