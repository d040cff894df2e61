"""Counts and logs the records that waited too long between their fetch and their first attempt.

Invariant: at most one line is logged for each topic in ten seconds. A line covers all late records of its topic since
the topic's previous line.
"""

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt
from headway.records.record_types import TopicPartition

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # the minimum time between two log lines for a topic, in seconds


@dataclass(slots=True)
class _LateRecords:
    """The late records of one topic since its last log line."""

    log_at: float
    count: int = 0
    longest: float = 0.0


class QueueTimes(Gate):
    """Counts the records that waited for more than `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._late = 0
        self._topics: dict[str, _LateRecords] = {}
        self._log_at = math.inf  # when to log the next line; infinite while there is nothing to log
        self._counted = set[tuple[TopicPartition, int]]()  # records that already had a slot, but returned to their lane
        self._counting = threading.Lock()  # needed because the dispatch does not hold its lock when it calls `log`

    def started(self, job: Job, running: int, now: float) -> bool:
        """Count the records that waited too long.

        Retries are not counted, because they have waited for their back-off.
        """
        for attempt in job:
            waited = now - attempt.arrived
            if waited > self._limit and attempt.failure is None and not self._was_counted(attempt):
                self._count(attempt, waited, now)
        return False

    def put_back(self, attempt: RecordAttempt) -> None:
        """Remember that this attempt has already started once, so that its next start is not counted."""
        if attempt.failure is None:
            self._counted.add((attempt.partition, attempt.offset))

    def _was_counted(self, attempt: RecordAttempt) -> bool:
        if not self._counted or (attempt.partition, attempt.offset) not in self._counted:
            return False
        self._counted.discard((attempt.partition, attempt.offset))
        return True

    def _count(self, attempt: RecordAttempt, waited: float, now: float) -> None:
        with self._counting:
            self._late += 1
            about = self._topics.setdefault(attempt.partition.topic, _LateRecords(now))
            about.count += 1
            about.longest = max(about.longest, waited)
            self._log_at = min(about.log_at, self._log_at)

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log a line for each topic with new late records, but at most one line for a topic in ten seconds."""
        if now < self._log_at and not at_end:
            return
        due: dict[str, _LateRecords] = {}
        with self._counting:
            for topic, about in self._topics.items():
                if about.count and (at_end or now >= about.log_at):
                    due[topic] = about
                    self._topics[topic] = _LateRecords(now + _LOG_EVERY)
            self._log_at = min((about.log_at for about in self._topics.values() if about.count), default=math.inf)
        for topic, about in due.items():
            log.warning(
                "%d records of %s waited for more than %g s before they started. The longest wait was %.3g s. The "
                "handlers do not keep up: raise max_concurrency, add members, or make the handlers faster.",
                about.count,
                topic,
                self._limit,
                about.longest,
            )

    def metrics(self) -> Mapping[str, Any]:
        """Return the metric `late`, the number of records that waited too long."""
        return {"late": self._late}
