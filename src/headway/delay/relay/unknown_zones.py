"""Logs which time zones recurring schedules need but the relay's machine does not have."""

import logging
import time
from collections.abc import Iterable

from headway.core.delay.relay_tick import RelayTick

log = logging.getLogger(__name__)

_AGAIN_AFTER = 600.0  # how soon a time zone can be logged again, in seconds
# The maximum number of time zones that are remembered. There is a limit because anyone can write headers with new
# names.
_MOST = 100


class UnknownZones:
    """The time zones that are missing on this machine. Each of them is logged at most once in ten minutes."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def report(self, ticks: Iterable[RelayTick]) -> None:
        """Log each missing time zone, and what to install."""
        for missing in {each for tick in ticks for each in tick.unknown_zones}:
            now = time.monotonic()
            if now - self._logged.get(missing, -_AGAIN_AFTER) < _AGAIN_AFTER:
                continue
            if len(self._logged) >= _MOST:
                self._logged.clear()
            self._logged[missing] = now
            log.warning(
                "Recurring schedules were delivered, but this relay cannot compute their next times. %s Then restart "
                "this relay, or let a relay on another machine take over.",
                missing,
            )
