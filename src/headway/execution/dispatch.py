"""The engine, shared: executors report to it and take from it, the control thread feeds it and commits.

A thread that ends a job takes the next one in the same call. A free slot is therefore filled at once, and no other
thread is woken for it. The control thread is woken only if it has something to do. The lock is held for some
microseconds at a time, never during a handler, a call to Kafka, or anything that lets another thread run.

At most one executor's thread waits for the lock; others leave their reports with that thread and are idle. If each
thread waited itself, a thousand of them would queue up whenever one was interrupted with the lock. They would then be
woken one by one.

All calls are in one class, and the file is long for it: each is a few steps under the same lock.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from headway.core.engine.circuit import Circuit
from headway.core.engine.concurrency import Concurrency
from headway.core.engine.engine import Engine
from headway.core.engine.work import Outcome
from headway.core.retry import Again, DeadLetter, Retries, Verdict
from headway.core.user_errors import without_frames
from headway.errors import HeadwayError
from headway.execution.expiries import Expiries
from headway.execution.failures import Failures, Letters, Schedules
from headway.execution.jobs import Job, RecordWork
from headway.execution.metrics import ParallelMetrics
from headway.execution.queue_times import QueueTimes
from headway.execution.supervision import Supervision
from headway.records import ConsumerRecord, TopicPartition
from headway.runtime.wakeup import Wakeup

_MOST_TENANTS_TOLD = 5
_MOST_UNCOUNTED = 50  # attempts of a record that failed while the circuit was open: one that always fails ends, too
_AFTER_AN_OUTAGE = 1.0  # seconds


def _key_of(work: RecordWork) -> Hashable:
    """Return the key by which a record counts for the circuit; without a key, the record's own."""
    key = work.record.raw_key
    return (work.partition, work.offset) if key is None else key


class Dispatch:
    """The part that hands out jobs and takes their outcomes; all but `lock` and `engine` may be used from any thread.

    The executor and the stores report to the dispatch, so they are made after it, and `begin` gives them to it. Nothing
    starts before that.
    """

    def __init__(
        self, engine: Engine[ConsumerRecord], retries: Retries, admission: Concurrency, wake: Wakeup, levels: int
    ) -> None:
        # At most 30 attributes: with more, CPython shares no keys between dicts, and each access takes longer.
        self.lock = threading.Lock()
        self.engine = engine
        engine.count_slots(lambda: admission.limit)
        self.paused = False  # True to start nothing; running jobs go on
        self.ending = False  # nothing starts any more
        self.failure: HeadwayError | None = None
        self.expiries = Expiries()
        self._circuit: Circuit | None = None
        self._failures = Failures(retries)
        self._starts: Callable[[Sequence[Job]], None] | None = None  # None until the run begins
        self._take_job: Callable[[float], Job] = partial(engine.take, 1)  # empty if there is none
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

    def warn_of_queue_times(self, limit: float) -> None:
        """Tell of records that wait longer than this before they start, in seconds; call it before any starts."""
        self._queue_times = QueueTimes(limit)

    def begin(
        self,
        starts: Callable[[Sequence[Job]], None],
        *,
        letters: Letters | None = None,
        schedules: Schedules | None = None,
        supervision: Supervision | None = None,
        take_job: Callable[[float], Job] | None = None,
        keeps_expired: bool = False,
        circuit: Circuit | None = None,
    ) -> None:
        """Let jobs start from now on.

        Args:
            starts: The executor's method that starts jobs for which no thread asked.
            letters: The store of dead letters.
            schedules: The store of records to be tried again much later.
            supervision: The care for suspects and the table of running records.
            take_job: Takes the next job from the engine, empty if there is none; by default a job has one work.
            keeps_expired: True if records that expired become dead letters; else they are dropped.
            circuit: The circuit breaker of the handler, if it has one.
        """
        self.expiries.are_kept = keeps_expired
        self._circuit = circuit
        self._is_paced = self._is_paced or circuit is not None
        self._failures = Failures(self._failures.retries, letters, schedules, supervision)
        self._supervision = supervision
        self._take_job = take_job or self._take_job
        self._starts = starts

    def let_expire(self) -> None:
        """Look from now on whether works have expired; before one comes that will, it would cost each for nothing."""
        if not self.expiries.are_expected:
            self.expiries.are_expected = True
            self._take_job = partial(self._take_in_time, self._take_job)

    def end(self) -> None:
        """Start nothing any more."""
        self.ending = True

    def metrics(self) -> ParallelMetrics:
        """Return the counts of records done, running and waiting."""
        with self.lock:
            return ParallelMetrics(
                done=self._done,
                failed=self._failed,
                dead_letters=self._dead_letters,
                running=len(self._running),
                ready=sum(self.engine.ready),
                remaining=self.engine.work_remaining,
                abandoned=self._abandoned,
                late=self._queue_times.late if self._queue_times else 0,
                busiest_tenants=self.engine.busiest_tenants(_MOST_TENANTS_TOLD),
                expired=self.expiries.count,
                circuit_open=self._circuit is not None and self._circuit.is_open,
            )

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done."""
        with self.lock:
            return self.engine.work_remaining

    # For executors

    def done(self, work: RecordWork, outputs: Sequence[Any] = ()) -> Job | None:
        """Note that a work is done; return the next job, if there is one for this slot."""
        if not self.lock.acquire(blocking=False):
            self._reports.append((work, outputs))
            return self._settle_reports()
        try:
            now = time.monotonic()
            self._finish(work, outputs, now)
            job = self._next(now)
        finally:
            self.lock.release()
        if self._control_is_due:
            self._wake_control()
        return job

    def _settle_reports(self) -> Job | None:
        if not self._waiting.acquire(blocking=False):
            return None  # the waiting thread takes our report along, and starts the next job in its place
        try:
            self.lock.acquire()
        finally:
            self._waiting.release()
        try:
            now = time.monotonic()
            slots = 0
            while self._reports:  # further reports may still come
                self._finish(*self._reports.popleft(), now)
                slots += 1
            jobs = self._start(slots, now)
        finally:
            self.lock.release()
        self._wake_control()
        if jobs[1:] and self._starts:
            self._starts(jobs[1:])
        return jobs[0] if jobs else None

    def settle_job(self, job: Job, error: BaseException | None = None) -> Job | None:
        """Note all works of a job as done, or as failed; return the next job, if there is one for this slot."""
        if error is None:
            return self.settle([(work, ()) for work in job], ())
        return self.settle((), [(work, error) for work in job])

    def settle(
        self, done: Iterable[tuple[RecordWork, Sequence[Any]]], failed: Iterable[tuple[RecordWork, BaseException]]
    ) -> Job | None:
        """Note works of a job as done, with their outputs, or failed; return the next job, if one is for this slot."""
        now = time.monotonic()
        # A user's code, log handlers included, runs without the lock: it may ask the consumer something.
        verdicts = [(work, error, self._failures.decide(work, error, now)) for work, error in failed]
        with self.lock:
            for work, outputs in done:
                self._finish(work, outputs, now)
            if self._circuit is not None:
                verdicts = [(work, error, self._under_circuit(work, verdict, now)) for work, error, verdict in verdicts]
            ours = [failure for failure in verdicts if self._fail(*failure, now)]
            job = self._next(now)
        self._wake_control()
        self._failures.circuit_log.tell(self._circuit, verdicts)
        for failure in ours:
            if unkept := self._failures.tell(*failure, now):
                self.give_up(unkept)
        return job

    def done_together(self, job: Job, outputs: Sequence[Any]) -> Job | None:
        """Note a batch of one partition as done, to be committed as a whole with its outputs; return the next job."""
        now = time.monotonic()
        with self.lock:
            for work in job:
                if self._supervision and self._supervision.finish(work):
                    self._control_is_due = True  # to commit
                if self._circuit is not None:
                    self._circuit.succeeded(_key_of(work), work, now)
                self._end(work, now)
            self._done += len(job) * self.engine.finish_together(job, now, outputs)
            following = self._next(now)
        self._wake_control()
        return following

    def settle_later(self, job: Job, error: BaseException | None = None) -> None:
        """Note a job as `settle_job` does, on a thread that runs none: the next one is started for it."""
        if (following := self.settle_job(job, error)) and self._starts:
            self._starts((following,))

    def not_scheduled(self, work: RecordWork, error: BaseException) -> None:
        """Note that the scheduler refuses to try a work again later: the work failed for this reason instead."""
        with self.lock:
            work.outcome = None
            self._failed -= 1  # both failures are of one attempt
        self.settle_later((work,), error)

    def letters_committed(self, count: int) -> None:
        """Count dead letters that were sent in `outputs` and are in Kafka now."""
        with self.lock:
            self._dead_letters += count

    def stored(self, work: RecordWork, outputs: Sequence[Any] = ()) -> None:
        """Note that a work's outputs, dead letter or schedule are in Kafka, or in `outputs`."""
        now = time.monotonic()
        with self.lock:
            self._finish(work, outputs, now)
        self._wake_control()
        self.feed()

    def not_stored(self, work: RecordWork, again_at: float) -> None:
        """Note that a dead letter or schedule was refused: the work gives its slot back, to be sent again at this time.

        Its handler is not called again; its lane waits.
        """
        self._put_back(work, again_at, unstored=True)

    def untried(self, work: RecordWork) -> None:
        """Note that a work has not begun: it runs again as if it had not been given out."""
        self._put_back(work, time.monotonic(), unstored=False)

    def _put_back(self, work: RecordWork, at: float, *, unstored: bool) -> None:
        now = time.monotonic()
        with self.lock:
            self._end(work, now)
            self._unstored += self.engine.retry(work, at, None, now) and unstored
            self._control_is_due = True  # the control thread must wait for that time
        self._wake_control()
        self.feed()

    def give_up(self, failure: HeadwayError) -> None:
        """End the run with this error: nothing can run any more."""
        self.failure = self.failure or failure
        self._wake.set()

    def next(self) -> Job | None:
        """Return another job, if there is one and a slot is free."""
        with self.lock:
            job = self._next(time.monotonic())
        self._wake_control()
        return job

    def feed(self) -> None:
        """Start the jobs that may run now."""
        now = time.monotonic()
        self._failures.tell_sums(now)
        self.expiries.tell(now)
        self._failures.circuit_log.tell(self._circuit, ())
        with self.lock:
            if self._supervision and (given_up := self._supervision.give_up(now, self.ending)):
                self._end(given_up[0], now)
                self.engine.retry(*given_up, None, now)
            jobs = self._start(self._free(now), now)
            late = self._queue_times.take(now) if self._queue_times and self._queue_times.is_due(now) else None
        self._wake_control()
        if jobs and self._starts:
            self._starts(jobs)
        if late and self._queue_times:
            self._queue_times.tell(late)
        if self._to_store:
            self._failures.store_all(self._to_store)

    # For the control thread

    def alarm(self, level: int, ready: int) -> int:
        """Wake the control thread once this level has fewer ready works; -1 for never. Return 0."""
        self._alarms[level] = ready
        return 0

    def is_running(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Return how many works run, of these partitions or in all. From now on each end wakes the control thread."""
        with self.lock:
            self._watched = True
            if partitions is None:
                return len(self._running)
            return sum(work.assignment.current and work.partition in partitions for work in self._running)

    def runs_stale(self, partition: TopicPartition) -> bool:
        """Return whether works of this partition run that count no more; each end wakes the control thread then."""
        with self.lock:
            self._watched = True
            return any(work.partition == partition and not work.assignment.current for work in self._running)

    def give_up_running(self, partitions: Collection[TopicPartition]) -> None:
        """Have the running works of these partitions be none that count, whatever becomes of them."""
        with self.lock:
            self.engine.give_up([work for work in self._running if work.partition in partitions])

    def abandon(self) -> None:
        """Stop waiting for anything, and count the running works as abandoned."""
        with self.lock:
            self.ending = True
            self._abandoned = len(self._running)
            late = self._queue_times.take(time.monotonic(), all_of_them=True) if self._queue_times else None
        if late and self._queue_times:
            self._queue_times.tell(late)
        now = time.monotonic()
        self._failures.end(now)
        self.expiries.tell(now, at_end=True)

    def unwatch(self) -> None:
        """Note that the control thread does not wait for works to end any more."""
        self._watched = False

    def next_change(self, now: float) -> float | None:
        """Return when a job may be able to start though nothing else has happened."""
        with self.lock:
            if self.paused or self.ending:
                return None
            due = self.engine.next_wake()
            if self._circuit is not None and self._circuit.is_open:
                probe_at = self._circuit.next_probe()  # None while one runs
                if probe_at is None or (due is None and not any(self.engine.ready)):
                    return None
                return probe_at if due is None or any(self.engine.ready) else max(probe_at, due)
            is_due = due is not None and due <= now
            if is_due and self._free(now) <= 0:
                due = None  # the next thread with a free slot takes it, or it waits for the rate
            allowed = self._admission.next_change() if is_due or any(self.engine.ready) else None
            self._rate_is_awaited = allowed is not None
            times = (due, allowed)
        return min((time for time in times if time is not None), default=None)

    # With the lock

    def _free(self, now: float) -> int:
        if self.paused or self.ending or self._starts is None:
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
            self._circuit.succeeded(_key_of(work), work, now)
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

    def _under_circuit(self, work: RecordWork, verdict: Verdict, now: float) -> Verdict:
        """Tell the circuit of a failure, and return the verdict; while it is open the attempt does not count.

        What a handler says of its record alone is no failure of this kind: `FatalError`, `RetryLater`, an attempt that
        was untried, or a death.
        """
        if self._circuit is None:
            return verdict
        if not (verdict.tried_out if isinstance(verdict, DeadLetter) else isinstance(verdict, Again)):
            return verdict
        if isinstance(verdict, Again) and verdict.untried:
            return verdict
        if not self._circuit.failed(_key_of(work), work, now) or work.untried >= _MOST_UNCOUNTED:
            return verdict
        if isinstance(verdict, Again):
            return verdict._replace(untried=True)
        return Again(min(now + _AFTER_AN_OUTAGE, max(now, work.not_after)), untried=True)

    # Without it

    def _wake_control(self) -> None:
        if self._control_is_due:  # seen by at least one thread
            self._control_is_due = False
            self._wake.set()
