"""The jobs that run and those that may start: the steps of the dispatch, each for a caller that has the lock.

The calls are in `dispatch`: a thread takes the lock, then some of these steps, and tells others without the lock.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from headway.core.engine.circuit import Circuit, may_concern_all
from headway.core.engine.concurrency import Concurrency
from headway.core.engine.engine import Engine
from headway.core.engine.rate_limits import RateLimits
from headway.core.engine.work import Outcome
from headway.core.retry import Again, DeadLetter, Retries, Verdict
from headway.core.user_errors import without_frames
from headway.errors import HeadwayError
from headway.execution.expiries import Expiries
from headway.execution.failures import Failures
from headway.execution.jobs import Job, RecordWork
from headway.execution.queue_times import QueueTimes
from headway.execution.supervision import Supervision
from headway.records.record_types import ConsumerRecord
from headway.runtime.wakeup import Wakeup

_MOST_UNCOUNTED = 50  # attempts of a record that failed while the circuit was open: one that always fails ends, too
_AFTER_AN_OUTAGE = 1.0  # seconds


def key_of(work: RecordWork) -> Hashable:
    """Return the key by which a record counts for the circuit; without a key, the record's own."""
    key = work.record.raw_key
    return (work.partition, work.offset) if key is None else key


class RunningJobs:
    """The state of a dispatch, and the steps that change it; all but `paused` and `ending` need its lock."""

    def __init__(
        self, engine: Engine[ConsumerRecord], retries: Retries, admission: Concurrency, wake: Wakeup, levels: int
    ) -> None:
        # At most 30 attributes: with more, CPython shares no keys between dicts, and each access takes longer.
        self.lock = threading.Lock()
        self.engine = engine
        engine.count_slots(self._count_slots)
        self.paused = False  # True to start nothing; running jobs go on
        self._waits_for_outputs = False  # True to start nothing either
        self.ending = False  # nothing starts any more
        self.failure: HeadwayError | None = None
        self.expiries = Expiries()
        self._circuit: Circuit | None = None
        self._failures = Failures(retries)
        self._starts: Callable[[Sequence[Job]], None] | None = None  # None until the run begins
        self._take_job: Callable[[float], Job] = partial(engine.take, 1)  # empty if there is none
        self._batch_size = 1
        self._of_one_partition = False
        self._supervision: Supervision | None = None
        self._admission = admission
        self._is_paced = admission.is_paced
        self._wake = wake
        self._reports: deque[tuple[RecordWork, Sequence[Any]]] = deque()  # finished, not in the engine yet
        self._waiting = threading.Lock()  # held by the thread that waits for `lock` to pass them on
        # With the number of unfinished works of its job, if the job has more than one. Works of lost partitions stay
        # until they are reported.
        self._running: dict[RecordWork, list[int] | None] = {}
        self._jobs = 0
        self._unstored = 0  # works that wait to be stored elsewhere again, or are of lost partitions
        self._to_store: deque[RecordWork] = deque()  # works among them that are due now
        self._control_is_due = False
        self._alarms = [-1] * levels
        self._watched = False
        self._rate_is_awaited = False
        self._done = self._failed = self._dead_letters = self._abandoned = 0
        self._queue_times: QueueTimes | None = None

    def _count_slots(self) -> int:
        """Return the slots, taken and free, of which records that failed before get their share while others wait.

        Under an open circuit there is one. If records that failed went first there, a few that always fail would be
        every probe, and the circuit would stay open though all others could succeed.
        """
        return 1 if self._circuit is not None and self._circuit.is_open else self._admission.limit

    def _free(self, now: float) -> int:
        if self.paused or self.ending or self._waits_for_outputs or self._starts is None:
            return 0
        if self._is_paced and self._circuit is not None and not self._circuit.allows(now):
            return 0
        if self._supervision and self._supervision.alone:
            return self._supervision.free(self._jobs)
        return self._admission.free(self._jobs, now) if self._is_paced else self._admission.limit - self._jobs

    def _start(self, limit: int, now: float) -> Sequence[Job]:
        """Return at most `limit` jobs that may start."""
        jobs: list[Job] = []
        while len(jobs) < limit and (job := self._next(now)):
            jobs.append(job)
        return jobs

    def _next(self, now: float) -> Job | None:
        if self._free(now) <= 0:
            self._await_rate()
            return None
        if self._supervision and (waited := self._supervision.start_waiting(now)):
            return waited
        if not (job := self._take(now)):
            return None
        if self._supervision and job[1:]:
            job, waiting = self._supervision.set_apart(job)
            for work in waiting:
                self._end(work, now)
                self.engine.retry(work, now, None, now)
        if self._is_paced:
            self._admission.started(len(job), self._jobs, now)
            if self._circuit is not None:
                self._circuit.started(job)
        if self._queue_times:
            self._queue_times.note(job, now)
        level = job[0].assignment.level
        if self._alarms[level] >= 0 and self.engine.ready_of(level) < self._alarms[level]:
            self._alarms[level] = -1
            self._control_is_due = True
        return self._supervision.start(job, self._jobs, now) if self._supervision else job

    def _take(self, now: float) -> Job | None:
        """Take the next job; its works that were handled already, and wait to be stored elsewhere, are set aside."""
        while self._free(now) > 0 and (job := self._take_job(now)):
            left = [len(job)] if len(job) > 1 else None
            for work in job:
                self._running[work] = left
            self._jobs += 1
            if not self._unstored:
                return job
            unstored = [work for work in job if work.outcome]
            if not unstored:
                return job
            self._to_store += unstored
            self._unstored -= len(unstored)
            self._control_is_due = True
            if len(unstored) < len(job):
                return [work for work in job if not work.outcome]
        return None

    def _take_batch(self, now: float) -> Job:
        # A probe is one record: a bad one would fail its whole batch, and keep healthy records from ever closing the
        # circuit.
        size = 1 if self._circuit is not None and self._circuit.is_open else self._batch_size
        return self.engine.take_batch(size, now, self._of_one_partition)

    def _take_at_rates(self, limits: RateLimits[ConsumerRecord], take: Callable[[float], Job], now: float) -> Job:
        job = take(now)
        if limits.is_news(now):
            self._control_is_due = True  # it must wake up at another time
        return job

    def _take_in_time(self, take: Callable[[float], Job], now: float) -> Job:
        """Take the next job whose works did not all expire, without those that did and are dropped."""
        while job := take(now):
            if left := self._without_expired(job, now):
                return left
        return ()

    def _without_expired(self, job: Job, now: float) -> Job:
        """Return the works of a job without those that expired and are dropped; those to be kept have an outcome."""
        left = []
        for work in job:
            if work.not_after > now or work.outcome:
                left.append(work)
                continue
            self._control_is_due = True  # the buffer has room again, or there is something to store or to commit
            if self.expiries.keeps(work):
                self._unstored += 1
                left.append(work)
            elif self.engine.finish(work, now):
                self._done += 1
                if self._supervision:
                    self._supervision.finish(work)
        return left

    def _await_rate(self) -> None:
        if not self._rate_is_awaited and self._admission.next_change() is not None:
            self._rate_is_awaited = self._control_is_due = True

    def _finish(self, work: RecordWork, outputs: Sequence[Any], now: float) -> None:
        if self._supervision and self._supervision.finish(work):
            self._control_is_due = True  # to commit
        if self._circuit is not None and not work.outcome:
            self._circuit.succeeded(key_of(work), work, now)
        self._end(work, now)
        if self.engine.finish(work, now, outputs):
            self._done += 1
            if work.outcome and not outputs and isinstance(work.outcome.verdict, DeadLetter):
                self._dead_letters += 1

    def _end(self, work: RecordWork, now: float) -> None:
        if self._watched:
            self._control_is_due = True
        if work not in self._running:
            return
        if self._supervision and self._supervision.end(work):
            self._control_is_due = True  # other slots are free, too
        left = self._running.pop(work)
        if self._is_paced and self._circuit is not None and self._circuit.ended(work, now):
            self._control_is_due = True  # all slots are free again
        if left is not None:
            left[0] -= 1
            if left[0]:
                return
        self._jobs -= 1
        if self._is_paced:
            self._admission.ended(self._jobs, now)

    def _fail(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> bool:
        """Note a failure; return whether it is ours to tell. A work with a dead letter runs until that is stored."""
        self._failed += 1
        ours = self.engine.fail(work, error, verdict, now)
        if ours and not isinstance(verdict, Again) and self._failures.is_stored(verdict):
            work.outcome = Outcome(without_frames(error), verdict)
        else:
            self._end(work, now)
            self._control_is_due = True  # its next attempt has a time to wait for
        return ours

    def _under_circuit(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Tell the circuit of a failure, and return the verdict; while it is open the attempt does not count."""
        if self._circuit is None or not may_concern_all(error, verdict):
            return verdict
        if not self._circuit.failed(key_of(work), work, now) or work.untried >= _MOST_UNCOUNTED:
            return verdict
        if isinstance(verdict, Again):
            return verdict._replace(untried=True)
        return Again(min(now + _AFTER_AN_OUTAGE, max(now, work.not_after)), untried=True)
