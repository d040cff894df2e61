"""The engine, shared: executors report to it and take from it, the control thread feeds it and commits.

A thread that ends a job takes the next one in the same call. A free slot is therefore filled at once, and no other
thread is woken for it. The control thread is woken only if it has something to do. The lock is held for some
microseconds at a time, never during a handler, a call to Kafka, or anything that lets another thread run.

At most one executor's thread waits for the lock; others leave their reports with that thread and are idle. If each
thread waited itself, a thousand of them would queue up whenever one was interrupted with the lock. They would then be
woken one by one.

The steps that need the lock are in `running_jobs`.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from headway.core.engine.circuit import Circuit
from headway.core.engine.rate_limits import RateLimits
from headway.core.engine.work_states import WorkState
from headway.errors import HeadwayError
from headway.execution.failures import Failures, Letters, Schedules
from headway.execution.jobs import Job, RecordWork
from headway.execution.metrics import ParallelMetrics
from headway.execution.queue_times import QueueTimes
from headway.execution.running_jobs import RunningJobs, key_of
from headway.execution.supervision import Supervision
from headway.records.record_types import ConsumerRecord, TopicPartition

_MOST_TENANTS_TOLD = 5


class Dispatch(RunningJobs):
    """The part that hands out jobs and takes their outcomes; all but `lock` and `engine` may be used from any thread.

    The executor and the stores report to the dispatch, so they are made after it, and `begin` gives them to it. Nothing
    starts before that.
    """

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
        batch_size: int | None = None,
        of_one_partition: bool = False,
        limits: RateLimits[ConsumerRecord] | None = None,
        keeps_expired: bool = False,
        circuit: Circuit | None = None,
    ) -> None:
        """Let jobs start from now on.

        Args:
            starts: The executor's method that starts jobs for which no thread asked.
            letters: The store of dead letters.
            schedules: The store of records to be tried again much later.
            supervision: The care for suspects and the table of running records.
            batch_size: The most works of a job, for handlers of batches; by default a job has one work.
            of_one_partition: True if the works of a job must be of one partition.
            limits: The engine's rates of tenants and keys, if it has any.
            keeps_expired: True if records that expired become dead letters; else they are dropped.
            circuit: The circuit breaker of the handler, if it has one.
        """
        self.expiries.are_kept = keeps_expired
        self._circuit = circuit
        self._is_paced = self._is_paced or circuit is not None
        self._failures = Failures(self._failures.retries, letters, schedules, supervision)
        self._supervision = supervision
        if batch_size is not None:
            self._batch_size, self._of_one_partition = batch_size, of_one_partition
            self._take_job = self._take_batch
        if limits is not None:
            self._take_job = partial(self._take_at_rates, limits, self._take_job)
        self._starts = starts

    def let_expire(self) -> None:
        """Look from now on whether works have expired; before one comes that will, it would cost each for nothing."""
        if not self.expiries.are_expected:
            self.expiries.are_expected = True
            self._take_job = partial(self._take_in_time, self._take_job)

    def wait_for_outputs(self, waits: bool) -> None:
        """Start nothing while stored outputs wait for the caller to take them."""
        self._waits_for_outputs = waits
        if not waits:
            self._wake.set()

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
                verdicts = [(work, error, self._under_circuit(work, error, was, now)) for work, error, was in verdicts]
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
                    self._circuit.succeeded(key_of(work), work, now)
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
            if self._queue_times and not unstored:
                self._queue_times.put_back(work)
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

    def feed(self) -> float:
        """Start the jobs that may run now; return the time of this moment, from which on `next_change` looks."""
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
        return now

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

    def slots_idle_behind_keyless(self) -> tuple[int, int] | None:
        """Return (idle, all) slots if half of them idle and nothing may run, with records behind one without a key."""
        with self.lock:
            slots = self._admission.limit
            idle = slots - self._jobs
            if 2 * idle < slots or any(self.engine.ready) or self._free(time.monotonic()) <= 0:
                return None
            if self._supervision and self._supervision.alone:
                return None
            waits = any(
                work.record.raw_key is None and work.next is not None and work.next.state is WorkState.BEHIND
                for work in self._running
            )
            return (idle, slots) if waits else None

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

    def next_change(self, fed_at: float) -> float | None:
        """Return when a job may be able to start though nothing else happens; None if only an event can help.

        The time is after `fed_at`, when the caller called `feed` last. What has come by then was tried in vain: a slot,
        a probe or a suspect holds it up, and whoever lets go of that takes the next job, or wakes the control thread.
        Another wait until that time would be none, again and again.
        """
        with self.lock:
            self._rate_is_awaited = False
            if self.paused or self.ending or self._waits_for_outputs:
                return None
            due, times = self.engine.next_wake(), []
            probe_at: float | None = -math.inf
            if self._circuit is not None and self._circuit.is_open:
                probe_at = self._circuit.next_probe()
            if probe_at is None:
                return None
            if due is not None and due > fed_at:
                times.append(max(due, probe_at))
            if any(self.engine.ready) or (due is not None and due <= fed_at):
                allowed = self._admission.next_change()
                let_in = probe_at if allowed is None else max(allowed, probe_at)
                times.append(let_in)
                self._rate_is_awaited = allowed is not None and let_in > fed_at
        return min((time for time in times if time > fed_at), default=None)

    # Without the lock

    def _wake_control(self) -> None:
        if self._control_is_due:  # seen by at least one thread
            self._control_is_due = False
            self._wake.set()
