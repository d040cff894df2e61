"""Adapts the number of slots in use to the measured throughput.

The number grows as long as more slots bring more throughput, and shrinks as long as fewer slots bring no less.

Invariant: the limit is at least 1 and at most the number of slots, and no more jobs run than it allows.
"""

import math

from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt

# One measurement lasts at least _WINDOW seconds, and includes at least _ROUNDS jobs for each slot and _JOBS jobs in
# total, or _JOBS_OF_FIRST_STEPS while the limit doubles. If the durations of jobs are random, the throughput of 100
# jobs is known to within 10 %. That is enough to judge whether doubling the limit helped. For the smaller step it would
# not be enough: one measurement in five would find by accident that more slots pay off, and the limit would now and
# then drift to three times the best limit.
_WINDOW = 0.2
_ROUNDS = 4
_JOBS = 200
_JOBS_OF_FIRST_STEPS = 100
_FIRST_LIMIT = 8
_FIRST_STEP = 2.0  # the factor between two limits, until more slots bring no higher throughput for the first time
_STEP = 1.25  # the factor between two limits after that
# More slots pay off if the throughput grows at least with this power of their number. With 1 it would have to grow in
# proportion to the slots, and with 0 it would not have to grow at all.
_PAYS = 0.5
# The limit stays at the number of slots until the throughput changes by this factor, which shows that the service has
# changed. Then fewer slots are tried again.
_ANOTHER_SERVICE = 1.2


class AdaptiveLimit(Gate):
    """Limits the slots in use, beginning with few slots.

    Each measurement compares the throughput at the current limit with the throughput at the previous limit, and then
    the limit goes a step up or down. So an outdated measurement is soon forgotten, and near the best limit the limit
    alternates by one step. Only time in which all allowed slots are taken is measured, because other time does not show
    whether more slots would help.
    """

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST_LIMIT, most)
        self._most = most
        self._step = _FIRST_STEP
        self._jobs = _JOBS_OF_FIRST_STEPS
        self._last: tuple[int, float] | None = None  # the previous limit and its throughput
        self._at_most: float | None = None  # the throughput when the limit reached the number of slots
        self._running = 0
        self._at = 0.0
        self._begin()

    def slots(self, slots: int) -> int:
        """Return the current limit, or the number of slots if that is smaller."""
        return min(self.limit, slots)

    def may_start(self, running: int, now: float) -> bool:
        """Return whether fewer jobs run than the limit allows."""
        return running < self.limit

    def started(self, job: Job, running: int, now: float) -> bool:
        """Record that the number of running jobs has changed."""
        self._measure(running, now)
        return False

    def ended(self, attempt: RecordAttempt, running: int, now: float) -> bool:
        """Count a job that has ended. A job has ended when the last of its attempts has."""
        if running >= self._running:
            return False
        counts = self._running >= self.limit
        self._measure(running, now)
        if counts:
            self._ended += 1
            if not self._settled:
                self._begin(settled=self._ended >= self.limit, ended=self._ended)
            elif self._ended >= max(self._jobs, _ROUNDS * self.limit) and self._seconds >= _WINDOW:
                self._choose(self._ended / self._seconds)
                self._begin()
        return False

    def _measure(self, running: int, now: float) -> None:
        if self._running >= self.limit:
            self._seconds += now - self._at
        self._running, self._at = running, now

    def _begin(self, *, settled: bool = False, ended: int = 0) -> None:
        # The first job to end in each slot was started at the previous limit, so it must not be measured.
        self._settled = settled
        self._ended = 0 if settled else ended
        self._seconds = 0.0

    def _choose(self, throughput: float) -> None:
        up = self._last is None or _pays(self._last, (self.limit, throughput))
        if self.limit < self._most:
            self._at_most = None
        elif self._at_most is None:
            self._at_most = throughput
        elif abs(math.log(throughput / self._at_most)) > math.log(_ANOTHER_SERVICE):
            up = False  # the service has changed, so the measurement at the smaller limit is outdated
        if not up:
            self._step, self._jobs = _STEP, _JOBS
        step = self._step if up or self.limit == 1 else 1 / self._step
        limit = min(self._most, math.ceil(self.limit * step) if step > 1 else int(self.limit * step))
        if limit != self.limit:  # otherwise keep the measurement at the previous limit
            self._last = self.limit, throughput
            self.limit = limit


def _pays(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Compare the measurements at two limits. Returns whether the additional slots of the larger limit pay off."""
    (limit, throughput), (other_limit, other_throughput) = sorted((one, other))
    return math.log(other_throughput / throughput) >= _PAYS * math.log(other_limit / limit)
