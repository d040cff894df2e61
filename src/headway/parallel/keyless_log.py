"""A warning, once in a run, that slots are idle because records without a key run one at a time.

Under `Ordering.KEY` the records of a partition without a key share one lane, since Kafka keeps their order there. Users
who send without keys because no order matters then see one record at a time, whatever the concurrency.
"""

import logging
import math

from headway.execution.dispatch import Dispatch

log = logging.getLogger(__name__)

_CHECK_EVERY = 1.0  # seconds
_WARN_AFTER = 3  # checks in a row, because one alone can see the last records of a batch


class KeylessLog:
    """Checks once a second what runs and what waits, for runs with `Ordering.KEY` and more than one slot."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._check_at = 0.0
        self._seen = 0  # checks in a row

    def turn(self, now: float) -> None:
        """Warn if at least half of the slots have been idle for some seconds while records without a key wait."""
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
                '%d of %d slots are idle while records without a key wait. With ordering="key", the default, those of '
                "a partition run one at a time, in their order. If their order does not matter, set "
                'ordering="key_if_any"; where records with a key need no order either, ordering="unordered". This is '
                "logged once in a run.",
                idle,
                slots,
            )
