"""Adapts the number of slots in use to the measured throughput.

The number grows as long as more slots increase the throughput, and shrinks as long as fewer slots do not reduce it.

Invariant: the limit is at least 1 and at most the number of slots, and the number of running jobs never exceeds it.
"""

import math

from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt

# One measurement lasts at least _WINDOW seconds, and includes at least _ROUNDS jobs for each slot and _JOBS jobs in
# total, or _JOBS_OF_FIRST_STEPS while the limit doubles. If the durations of jobs are random, the throughput of 100
# jobs is known to within 10 %. This is precise enough to judge whether doubling the limit helped, but not for the
# smaller step: one measurement in five would find by chance that more slots pay off, and the limit would sometimes
# drift to three times the best limit.
_WINDOW = 0.2
_ROUNDS = 4
_JOBS = 200
_JOBS_OF_FIRST_STEPS = 100
_FIRST_LIMIT = 8
_FIRST_STEP = 2.0  # the factor between two limits, until an increase first fails to pay off
_STEP = 1.25  # the factor between two limits from then on
# If n times as many slots bring at least n ** _PAYS times the throughput, the additional slots pay off. With 1, the
# throughput would have to grow in proportion to the slots, and with 0 it would not have to grow at all.
_PAYS = 0.5
# Once the limit has reached the number of slots, it stays there until the throughput changes by this factor. Such a
# change shows that the service behind the handler has changed, so fewer slots are tried again.
_ANOTHER_SERVICE = 1.2


class AdaptiveLimit(Gate):
    """Limits the number of slots in use. The limit starts low and adapts to the throughput.

    Each measurement compares the throughput at the current limit with the throughput at the previous limit, and then
    the limit goes up or down by one step. So an outdated measurement is soon replaced. Near the optimum, the limit
    keeps moving up and down by one step. Only periods in which all allowed slots are taken are measured, because other
    periods do not show whether more slots would help.
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
        """Count a job when its last attempt has ended. At the end of a measurement, adapt the limit."""
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
        # The first job that ends in each slot can have started at the previous limit, so it must not be measured.
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
        if limit != self.limit:  # if the limit does not change, the measurement at the previous limit is kept
            self._last = self.limit, throughput
            self.limit = limit


def _pays(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Compare the measurements at two limits. Returns whether the additional slots of the larger limit pay off."""
    (limit, throughput), (other_limit, other_throughput) = sorted((one, other))
    return math.log(other_throughput / throughput) >= _PAYS * math.log(other_limit / limit)
