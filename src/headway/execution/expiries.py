"""Records that expired before they could be started: counted, and dropped or kept as dead letters.

A record whose time is up is set aside where works are taken from the engine. So it is in every mode and for every
executor, and a handler that runs is left alone.
"""

import logging
from datetime import UTC, datetime

from headway.core.engine.work import Outcome
from headway.core.retry import DeadLetter
from headway.errors import ExpiredError
from headway.execution.context import wall_time
from headway.execution.jobs import RecordWork

log = logging.getLogger(__name__)

_TELL_EVERY = 10.0  # seconds


class Expiries:
    """The expired records of a run.

    Attributes: are_expected: True once a record came that will expire. are_kept: True if they become dead letters.
    count: The number of records that expired.
    """

    def __init__(self) -> None:
        self.are_expected = False
        self.are_kept = False
        self.count = 0
        self._told = 0
        self._tell_at = 0.0
        self._last: RecordWork | None = None

    def keeps(self, work: RecordWork) -> bool:
        """Count a record that expired, and return whether it is to be kept: then its work says how it ends."""
        self.count += 1
        self._last = work
        if self.are_kept:
            at = datetime.fromtimestamp(wall_time(work.not_after), UTC)
            error = ExpiredError(f"The record expired at {at:%Y-%m-%d %H:%M:%S} UTC, before it could be started.")
            work.outcome = Outcome(error, DeadLetter("it expired before it was started"))
        return self.are_kept

    def tell(self, now: float, *, at_end: bool = False) -> None:
        """Tell the log how many records expired, every 10 seconds at most; to be called every now and then."""
        count = self.count - self._told
        if count and (at_end or now >= self._tell_at):
            self._told, self._tell_at = self.count, now + _TELL_EVERY
            became = "became dead letters" if self.are_kept else "were dropped"
            record = self._last and self._last.record
            log.info("%d records expired before they could be started, and %s; the last: %r", count, became, record)
