"""Warnings of a relay that lacks data about time zones, which its recurring schedules wait for."""

import logging
import time
from collections.abc import Iterable

from headway.core.delay.relay_tick import Tick

log = logging.getLogger(__name__)

_AGAIN_AFTER = 600.0  # seconds
_MOST = 100  # zones that are remembered: anybody may write a header with one


class UnknownZones:
    """The time zones that were missing, each of which is logged at most every ten minutes."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def tell(self, ticks: Iterable[Tick]) -> None:
        """Log what is missing, and what to install."""
        for missing in {each for tick in ticks for each in tick.unknown_zones}:
            now = time.monotonic()
            if now - self._logged.get(missing, -_AGAIN_AFTER) < _AGAIN_AFTER:
                continue
            if len(self._logged) >= _MOST:
                self._logged.clear()
            self._logged[missing] = now
            log.warning(
                "Recurring schedules have fired, and wait for a relay that knows when to fire again. %s Then restart "
                "this relay, or let one on another machine take over.",
                missing,
            )
