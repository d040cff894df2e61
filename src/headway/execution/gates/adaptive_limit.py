"""The number of slots in use, which grows while throughput grows with it and shrinks while throughput does not shrink.

Invariant: the limit is from 1 to the most allowed, and no more jobs run than it allows.
"""

import math

from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordWork

# One measurement takes at least _WINDOW seconds, _ROUNDS jobs for each slot, and _JOBS jobs, or _JOBS_OF_FIRST_STEPS
# while the limit doubles. Random durations make the throughput of 100 jobs uncertain by 10 %. That is enough to judge a
# doubling. With the small step, one measurement in five would find by accident that more slots pay, so the limit would
# now and then drift to three times the best one.
_WINDOW = 0.2
_ROUNDS = 4
_JOBS = 200
_JOBS_OF_FIRST_STEPS = 100
_FIRST_LIMIT = 8
_FIRST_STEP = 2.0  # the step until more slots do not pay for the first time
_STEP = 1.25
# More slots pay if the throughput grows with at least this power of them; 1 is in proportion, 0 not at all.
_PAYS = 0.5
# At the highest limit allowed no other is tried; a throughput that changed by this factor makes fewer be tried again.
_ANOTHER_SERVICE = 1.2


class AdaptiveLimit(Gate):
    """A limit that begins with few slots.

    Each measurement compares the throughput at this limit with that at the last one, and goes a step up or down. So an
    old measurement of a service is soon forgotten. Around the best limit the limit goes to and fro by a step. Only time
    in which all slots are taken counts: other time says nothing about more slots.
    """

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST_LIMIT, most)
        self._most = most
        self._step = _FIRST_STEP
        self._jobs = _JOBS_OF_FIRST_STEPS
        self._last: tuple[int, float] | None = None  # a limit and the throughput that it had
        self._at_most: float | None = None  # the throughput when the limit came to be the most
        self._running = 0
        self._at = 0.0
        self._begin()

    def slots(self, slots: int) -> int:
        """Return the limit."""
        return min(self.limit, slots)

    def may_start(self, running: int, now: float) -> bool:
        """Return whether fewer jobs run than the limit allows."""
        return running < self.limit

    def started(self, job: Job, running: int, now: float) -> bool:
        """Measure from now on with this number of jobs."""
        self._measure(running, now)
        return False

    def ended(self, work: RecordWork, running: int, now: float) -> bool:
        """Count the end of a job, which comes with that of its last work."""
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
        # The first job to end in each slot was started at the last limit.
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
            up = False  # the service has changed, so the measurement with fewer slots is outdated
        if not up:
            self._step, self._jobs = _STEP, _JOBS
        step = self._step if up or self.limit == 1 else 1 / self._step
        limit = min(self._most, math.ceil(self.limit * step) if step > 1 else int(self.limit * step))
        if limit != self.limit:  # at the highest limit allowed, keep the measurement with fewer slots
            self._last = self.limit, throughput
            self.limit = limit


def _pays(one: tuple[int, float], other: tuple[int, float]) -> bool:
    """Return whether the throughput of two limits grows with them."""
    (limit, throughput), (other_limit, other_throughput) = sorted((one, other))
    return math.log(other_throughput / throughput) >= _PAYS * math.log(other_limit / limit)
