"""Warnings of a relay that lacks time zone data for its recurring schedules."""

import logging
import time
from collections.abc import Iterable

from headway.core.delay.relay_tick import RelayTick

log = logging.getLogger(__name__)

_AGAIN_AFTER = 600.0  # seconds
_MOST = 100  # remembered zones: anyone can write a header that names one, so the number must be bounded


class UnknownZones:
    """The time zones that are missing on this machine. Each is logged at most once in ten minutes."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def report(self, ticks: Iterable[RelayTick]) -> None:
        """Log which zone is missing, and what to install."""
        for missing in {each for tick in ticks for each in tick.unknown_zones}:
            now = time.monotonic()
            if now - self._logged.get(missing, -_AGAIN_AFTER) < _AGAIN_AFTER:
                continue
            if len(self._logged) >= _MOST:
                self._logged.clear()
            self._logged[missing] = now
            log.warning(
                "Recurring schedules have fired, but this relay cannot find out when they fire next. %s Then restart "
                "this relay, or let one on another machine take over.",
                missing,
            )
