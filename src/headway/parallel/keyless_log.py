"""Warns once in a run if slots are idle because records without a key are handled one at a time.

With `Ordering.KEY`, all records of a partition that have no key share one lane, because Kafka guarantees their order.
So if a user omits the keys because the order does not matter, only one record of each partition is handled at a time,
even if `max_concurrency` is large.
"""

import logging
import math

from headway.execution.dispatch import Dispatch

log = logging.getLogger(__name__)

_CHECK_EVERY = 1.0  # the time between two checks, in seconds
# How many checks in a row must find idle slots before the warning. A single check can find idle slots by chance, at the
# moment when the fetched records run out.
_WARN_AFTER = 3


class KeylessLog:
    """Checks for idle slots once a second. Used only in runs with `Ordering.KEY` and more than one slot."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._check_at = 0.0
        self._seen = 0  # how many checks in a row have found idle slots

    def check(self, now: float) -> None:
        """Warn if for some seconds at least half of the slots have been idle while records without a key waited."""
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
