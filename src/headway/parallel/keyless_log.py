"""Warns, once in a run, if slots are idle because records without a key are handled one at a time.

With `Ordering.KEY`, all records of a partition that have no key share one lane, because Kafka keeps their order. So if
a user sends records without keys because their order does not matter, each partition handles only one record at a time,
whatever `max_concurrency` is.
"""

import logging
import math

from headway.execution.dispatch import Dispatch

log = logging.getLogger(__name__)

_CHECK_EVERY = 1.0  # seconds between two checks
# This many checks in a row must find idle slots. A single one can happen at the moment when a fetched batch runs out.
_WARN_AFTER = 3


class KeylessLog:
    """Checks for idle slots once a second. It is made only for runs with `Ordering.KEY` and more than one slot."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._check_at = 0.0
        self._seen = 0  # checks in a row that found idle slots

    def check(self, now: float) -> None:
        """Warn if at least half of the slots have been idle for some seconds while records without a key waited."""
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_EVERY
        found = self._dispatch.slots_idle_behind_keyless()
        if found is None:
            self._seen = 0
            return
        self._seen += 1
        if self._seen >= _WARN_AFTER:
            self._check_at = math.inf
            idle, slots = found
            log.warning(
                '%d of %d slots are idle while records without a key wait. With ordering="key", the default, such '
                "records of one partition are handled one at a time. If their order does not matter, set "
                'ordering="key_if_any", or ordering="unordered" if records with a key need no order either. This is '
                "logged once in a run.",
                idle,
                slots,
            )
