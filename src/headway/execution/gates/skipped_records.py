"""Counts and logs the records that the engine skips, because newer records of their keys wait (`latest_only`)."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from headway.core.engine.engine import Engine
from headway.execution.gate import Gate
from headway.records.record_types import ConsumerRecord

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # the minimum time between two log lines, in seconds


class SkippedRecords(Gate):
    """Counts the records that the engine has skipped."""

    def __init__(self, engine: Engine[ConsumerRecord]) -> None:
        self._engine = engine
        self._logged = 0
        self._log_at = -math.inf

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log how many records were skipped since the last line. Logs at most once every 10 seconds."""
        skipped = sum(self._engine.skipped)
        if skipped > self._logged and (at_end or now >= self._log_at):
            count, self._logged, self._log_at = skipped - self._logged, skipped, now + _LOG_EVERY
            log.debug("%d records were skipped, because newer records with the same keys waited.", count)

    def metrics(self) -> Mapping[str, Any]:
        """Return the metric `skipped`, the number of skipped records."""
        return {"skipped": sum(self._engine.skipped)}
