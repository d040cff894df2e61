"""Measures attempts: how long they held their slots, how long their records had waited, and how they ended.

The dispatch calls this like a gate, from the first call of `measure` on. It is not a subclass of `Gate`, because it is
compiled, so that it costs a record little: a compiled class cannot have a base class that is not.

Invariant: the methods are called with the lock of the dispatch.
"""

import math
from collections import Counter
from typing import Final

from headway.core.retry import Again, Verdict, failure_behind
from headway.core.user_errors import class_name
from headway.errors import TimeLimitError
from headway.execution.context import wall_time
from headway.execution.jobs import Job, RecordAttempt
from headway.metrics.histogram import Histogram, HistogramValue
from headway.metrics.table import HANDLER_DURATION, LEVEL_QUEUE_TIME

# Reading the timestamp of a record takes longer than everything else here, so it is read for at most this many records
# of a level in each period of this many seconds. The others count with the queue time of the record before them.
_MOST_SAMPLED: Final = 100
_PERIOD: Final = 0.1
_MOST_ERRORS: Final = 20  # the number of classes of errors that are counted separately
OTHER_ERRORS: Final = "other"
_NEWEST: Final = 0.01  # the weight of the last attempt in the mean handler time, after the first hundred


class Measurements:
    """The histograms and counters of a parallel consumer's attempts.

    Args:
        levels: The number of levels.
    """

    def __init__(self, levels: int) -> None:
        self.mean: float | None = None
        """The mean time for which a record holds a slot, over about the last hundred attempts, or None before any."""
        self.done_of_levels = [0] * levels
        """The number of records of each level that are done."""
        self.retried = 0
        """Failed attempts whose records are tried again."""
        self.timed_out = 0
        """Attempts that exceeded the time limit."""
        self.failed: Counter[str] = Counter()
        """Failed attempts by the class of the error."""
        self._durations = Histogram(HANDLER_DURATION.bounds)
        self._ended = 0
        # The sizes of running batches, at the first attempt of each; the other attempts of a batch have 0.
        self._batches: dict[RecordAttempt, int] = {}
        self._queue_times = [Histogram(LEVEL_QUEUE_TIME.bounds) for _ in range(levels)]
        self._period_ends = [-math.inf] * levels
        self._sampled = [0] * levels  # how many timestamps were read in the present period
        self._last = [0.0] * levels  # the last queue time of each level
        self._unsampled = [0] * levels  # how many records have started since then

    def started(self, job: Job, now: float) -> None:
        """Record that a job has taken a slot."""
        for attempt in job:
            attempt.started = now
            if attempt.failure is None:  # a retry has waited for its back-off
                self._count_queue_time(attempt, now)
        if len(job) > 1:
            for attempt in job:
                self._batches[attempt] = 0
            self._batches[job[0]] = len(job)

    def _count_queue_time(self, attempt: RecordAttempt, now: float) -> None:
        level = attempt.assignment.level
        if now >= self._period_ends[level]:
            self._period_ends[level] = now + _PERIOD
            self._sampled[level] = 0
        elif self._sampled[level] >= _MOST_SAMPLED:
            self._unsampled[level] += 1
            return
        self._sampled[level] += 1
        self._observe_unsampled(level)
        self._last[level] = _queue_time(attempt, now)
        self._queue_times[level].observe(self._last[level])

    def _observe_unsampled(self, level: int) -> None:
        if self._unsampled[level]:
            self._queue_times[level].observe(self._last[level], self._unsampled[level])
            self._unsampled[level] = 0

    def put_back(self, attempt: RecordAttempt) -> None:
        """Record that the handler was not called for an attempt that had a slot."""
        attempt.started = math.inf

    def ended(self, attempt: RecordAttempt, now: float) -> None:
        """Record that an attempt has left its slot."""
        records = self._batches.pop(attempt, 1) if self._batches else 1
        try:
            seconds = now - attempt.started
        except AttributeError:  # it started before the measurements
            return
        if seconds < 0 or records == 0:
            return
        self._durations.observe(seconds)
        self._ended += 1
        of_record = seconds / records
        mean = self.mean
        self.mean = of_record if mean is None else mean + max(_NEWEST, 1 / self._ended) * (of_record - mean)

    def judged(self, error: BaseException, verdict: Verdict) -> None:
        """Record that an attempt failed with this error, and what becomes of its record."""
        if isinstance(verdict, Again):
            self.retried += 1
        if isinstance(error, TimeLimitError):
            self.timed_out += 1
        name = class_name(type(failure_behind(error)))
        self.failed[name if name in self.failed or len(self.failed) < _MOST_ERRORS else OTHER_ERRORS] += 1

    def done(self, attempt: RecordAttempt, records: int) -> None:
        """Record that this many records are done, which are on the level of this attempt."""
        self.done_of_levels[attempt.assignment.level] += records

    def durations(self) -> HistogramValue:
        """Return the histogram of the times for which attempts held their slots."""
        return self._durations.value()

    def queue_times(self) -> list[HistogramValue]:
        """Return for each level how long its records had waited when their first attempts started."""
        for level in range(len(self._queue_times)):
            self._observe_unsampled(level)
        return [each.value() for each in self._queue_times]


def _queue_time(attempt: RecordAttempt, now: float) -> float:
    """Return how long ago the record was created, or fetched if it has no timestamp."""
    created = attempt.record.timestamp
    return max(0.0, wall_time(now) - created / 1000) if created > 0 else now - attempt.arrived
