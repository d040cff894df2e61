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
from headway.records.record_types import TopicPartition

# Reading the timestamp of a record takes longer than everything else here, so it is read for at most this many records
# of a level in each period of this many seconds. The others count with the queue time of the record before them.
_MOST_SAMPLED: Final = 100
_PERIOD: Final = 0.1
_MOST_ERRORS: Final = 20  # the number of classes of errors that are counted separately
OTHER_ERRORS: Final = "other"
_NEWEST: Final = 0.01  # the weight of the last attempt in the mean handler time, after the first hundred
_FIRST: Final = 100


class Measurements:
    """The histograms and counters of a parallel consumer's attempts.

    Args:
        levels: The number of levels.
    """

    def __init__(self, levels: int) -> None:
        self.done_of_levels = [0] * levels
        """The number of records of each level that are done."""
        self.retried = 0
        """Failed attempts whose records are tried again."""
        self.timed_out = 0
        """Attempts that exceeded the time limit."""
        self.failed: Counter[str] = Counter()
        """Failed attempts by the class of the error."""
        self.failed_of_partitions: Counter[TopicPartition] = Counter()
        """Failed attempts by the partition of their records."""
        self._durations = Histogram(HANDLER_DURATION.bounds)
        self._ended = 0
        self._mean = 0.0
        # The sizes of running batches, at the first attempt of each; the other attempts of a batch have 0.
        self._batches: dict[RecordAttempt, int] = {}
        self._levels = [_QueueTimesOfLevel() for _ in range(levels)]

    @property
    def mean(self) -> float | None:
        """The mean time for which a record holds a slot, over about the last hundred attempts, or None before any."""
        return self._mean if self._ended else None

    def started(self, job: Job, now: float) -> None:
        """Record that a job has taken a slot."""
        if len(job) > 1:
            for attempt in job:
                self._start(attempt, now)
                self._batches[attempt] = 0
            self._batches[job[0]] = len(job)
        else:
            self._start(job[0], now)

    def _start(self, attempt: RecordAttempt, now: float) -> None:
        attempt.started = now
        if attempt.failure is None:  # a retry has waited for its back-off
            self._levels[attempt.assignment.level].count(attempt, now)

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
        weight = _NEWEST if self._ended > _FIRST else 1 / self._ended
        self._mean += weight * (seconds / records - self._mean)

    def judged(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict) -> None:
        """Record that an attempt failed with this error, and what becomes of its record."""
        self.failed_of_partitions[attempt.partition] += 1
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
        return [each.value() for each in self._levels]


class _QueueTimesOfLevel:
    """How long the records of one level had waited when their first attempts started."""

    def __init__(self) -> None:
        self._histogram = Histogram(LEVEL_QUEUE_TIME.bounds)
        self._period_ends = -math.inf
        self._sampled = 0  # how many timestamps were read in the present period
        self._last = 0.0  # the last queue time that was read
        self._unsampled = 0  # how many records have started since then

    def count(self, attempt: RecordAttempt, now: float) -> None:
        """Count a record that starts now."""
        if self._sampled >= _MOST_SAMPLED and now < self._period_ends:
            self._unsampled += 1
            return
        if now >= self._period_ends:
            self._period_ends = now + _PERIOD
            self._sampled = 0
        self._sampled += 1
        self._count_unsampled()
        self._last = _queue_time(attempt, now)
        self._histogram.observe(self._last)

    def _count_unsampled(self) -> None:
        if self._unsampled:
            self._histogram.observe(self._last, self._unsampled)
            self._unsampled = 0

    def value(self) -> HistogramValue:
        """Return the histogram of all records that were counted."""
        self._count_unsampled()
        return self._histogram.value()


def _queue_time(attempt: RecordAttempt, now: float) -> float:
    """Return how long ago the record was created, or fetched if it has no timestamp."""
    created = attempt.record.timestamp
    return max(0.0, wall_time(now) - created / 1000) if created > 0 else now - attempt.arrived
