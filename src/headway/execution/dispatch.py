"""Shares the engine between threads: executors report to it and take jobs, the control thread adds records and commits.

A thread that ends a job takes the next one in the same call. So a free slot is filled at once, without waking another
thread. The control thread is woken only if it has something to do. The lock is held for some microseconds at a time,
and never during a handler, a call to Kafka, or anything that lets another thread run.

At most one thread of an executor waits for the lock. Others leave their reports to that thread and become idle. If all
of them waited, a thousand threads could queue up when the owner of the lock is interrupted, and each would have to be
woken.

Optional features are gates (`gate.py`), and the dispatch asks only those that it was given.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from headway.core.engine.engine import Engine
from headway.core.engine.work import FinalOutcome
from headway.core.engine.work_states import WorkState
from headway.core.retry import Again, GiveUp, Retries, Verdict
from headway.core.user_errors import without_frames
from headway.errors import HeadwayError
from headway.execution.executor import Executor
from headway.execution.failures import Failures, Letters, Schedules
from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordWork
from headway.execution.metrics import ParallelMetrics
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.wakeup import Wakeup

_MOST_TENANTS_SHOWN = 5


class Dispatch:
    """The running jobs, and the choice of those that start next. Thread-safe, except that `engine` needs `lock`.

    The executor and the stores report to the dispatch, so they are made after it and given to `begin`. No job starts
    before that.

    Args:
        engine: The engine.
        retries: The rule that decides about failed attempts.
        slots: The number of jobs that can run at a time.
        wake: Wakes the control thread.
        gates: The optional features in use.
    """

    def __init__(
        self,
        engine: Engine[ConsumerRecord],
        retries: Retries,
        slots: int,
        wake: Wakeup,
        gates: Iterable[Gate] = (),
    ) -> None:
        # At most 30 attributes: with more, CPython shares no keys between dicts, and each access takes longer.
        self.lock = threading.Lock()
        self.engine = engine
        engine.count_slots(self._slots_in_use)
        self.paused = False  # True to start nothing; running jobs go on
        self.ending = False  # True to start nothing any more
        self.failure: HeadwayError | None = None
        self._waits_for_outputs = False  # True to start nothing either
        self._slots = slots
        self._gates = tuple(gates)
        self._wake = wake
        self._retries = retries
        self._failures = Failures(retries)  # `begin` makes the one with the stores
        self._executor: Executor | None = None  # None until the run begins
        self._batch_size: int | None = None  # None for a handler of single records
        self._of_one_partition = False
        self._reports: deque[tuple[RecordWork, Sequence[Any]]] = deque()  # of ended works, for the waiting thread
        self._waiting = threading.Lock()  # held by the one thread that waits for `lock`, to pass on the reports
        # Works with a slot. Works of one batch share a list with the number of those that have not ended. A work of a
        # lost partition stays here until its end is reported.
        self._running: dict[RecordWork, list[int] | None] = {}
        self._jobs = 0
        self._to_store: deque[RecordWork] = deque()  # works whose dead letter or schedule is due to be sent
        self._control_is_due = False
        self._alarms = [-1] * len(engine.ready)
        self._watched = False
        self._opening_is_awaited = False  # True if the control thread will wake when the gates open
        self._done = self._failed = self._dead_letters = self._abandoned = 0

    def add(self, gate: Gate) -> None:
        """Ask this gate too from now on."""
        if gate not in self._gates:
            self._gates = (*self._gates, gate)  # a new tuple: another thread may be going through the old one

    def begin(
        self,
        executor: Executor,
        *,
        letters: Letters | None = None,
        schedules: Schedules | None = None,
        batch_size: int | None = None,
        of_one_partition: bool = False,
        is_supervised: bool = False,
    ) -> None:
        """Let jobs start from now on.

        Args:
            executor: The executor that runs the jobs.
            letters: The store of dead letters.
            schedules: The store of records to be retried much later.
            batch_size: The maximum number of works in a job, for a handler of batches. By default it is 1.
            of_one_partition: True if all works of a job must be of one partition.
            is_supervised: True if a supervisor takes care of records that kill this process.
        """
        self._failures = Failures(self._retries, letters, schedules, is_supervised=is_supervised)
        self._batch_size, self._of_one_partition = batch_size, of_one_partition
        self._executor = executor

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
            of_gates = {name: count for gate in self._gates for name, count in gate.metrics().items()}
            return ParallelMetrics(
                done=self._done,
                failed=self._failed,
                dead_letters=self._dead_letters,
                running=len(self._running),
                ready=sum(self.engine.ready),
                remaining=self.engine.work_remaining,
                abandoned=self._abandoned,
                busiest_tenants=self.engine.busiest_tenants(_MOST_TENANTS_SHOWN),
                **of_gates,
            )

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done."""
        with self.lock:
            return self.engine.work_remaining

    # For executors

    def done(self, work: RecordWork, outputs: Sequence[Any] = ()) -> Job | None:
        """Record that a work is done. Returns the next job, if there is one for this slot."""
        if not self.lock.acquire(blocking=False):
            self._reports.append((work, outputs))
            return self._take_reports()
        try:
            now = time.monotonic()
            self._finish(work, outputs, now)
            job = self._next(now)
        finally:
            self.lock.release()
        if self._control_is_due:
            self._wake_control()
        return job

    def _take_reports(self) -> Job | None:
        if not self._waiting.acquire(blocking=False):
            return None  # the waiting thread passes this report on, and starts the next job instead of this thread
        try:
            self.lock.acquire()
        finally:
            self._waiting.release()
        try:
            now = time.monotonic()
            slots = 0
            while self._reports:  # other threads can still add reports
                work, outputs = self._reports.popleft()
                self._finish(work, outputs, now)
                slots += 1
            jobs = self._next_jobs(now, slots)
        finally:
            self.lock.release()
        self._wake_control()
        if jobs[1:] and self._executor:
            self._executor.start(jobs[1:])
        return jobs[0] if jobs else None

    def complete(self, job: Job, error: BaseException | None = None) -> Job | None:
        """Record that the works of a job are done, or have failed. Returns the next job, if there is one."""
        if error is None:
            return self.complete_each([(work, ()) for work in job], ())
        return self.complete_each((), [(work, error) for work in job])

    def complete_each(
        self, done: Iterable[tuple[RecordWork, Sequence[Any]]], failed: Iterable[tuple[RecordWork, BaseException]]
    ) -> Job | None:
        """Note the works of a job that are done, with their outputs, and those that failed. Returns the next job."""
        now = time.monotonic()
        # Users' code, including log handlers, is called without the lock, because it can call the consumer.
        judged = [(work, error, self._failures.decide(work, error, now)) for work, error in failed]
        ours = []
        with self.lock:
            for work, outputs in done:
                self._finish(work, outputs, now)
            for work, error, verdict in judged:
                for gate in self._gates:
                    verdict = gate.judged(work, error, verdict, now)  # noqa: PLW2901
                if self._fail(work, error, verdict, now):
                    ours.append((work, error, verdict))
            job = self._next(now)
        self._wake_control()
        for gate in self._gates:
            gate.log(now)
        for work, error, verdict in ours:
            if fatal := self._failures.act_on(work, error, verdict, now):
                self.give_up(fatal)
        return job

    def complete_together(self, job: Job, outputs: Sequence[Any]) -> Job | None:
        """Record that a batch of one partition is done, to be committed as a whole. Returns the next job."""
        now = time.monotonic()
        with self.lock:
            for work in job:
                self._leave(work, now)
            if self.engine.finish_together(job, now, outputs):
                self._done += len(job)
            following = self._next(now)
        self._wake_control()
        return following

    def complete_elsewhere(self, job: Job, error: BaseException | None = None) -> None:
        """Do the same as `complete` on a thread that is not the executor's. The executor starts the next job."""
        following = self.complete(job, error)
        if following and self._executor:
            self._executor.start((following,))

    def not_scheduled(self, work: RecordWork, error: BaseException) -> None:
        """Record that a work cannot be scheduled for a later attempt. It fails with this error instead."""
        with self.lock:
            work.outcome = None
            self._failed -= 1  # this attempt was counted as failed already
        self.complete_elsewhere((work,), error)

    def letters_committed(self, count: int) -> None:
        """Count dead letters that a transaction has committed."""
        with self.lock:
            self._dead_letters += count

    def stored(self, work: RecordWork, outputs: Sequence[Any] = ()) -> None:
        """Record that a work's outputs, dead letter or schedule are stored, or wait in `outputs` for a transaction."""
        now = time.monotonic()
        with self.lock:
            self._finish(work, outputs, now)
        self._wake_control()
        self.feed()

    def not_stored(self, work: RecordWork, again_at: float) -> None:
        """Record that Kafka refused a dead letter or schedule, which must be sent again at this time.

        The work gives back its slot. Its handler is not called again, and its lane waits.
        """
        now = time.monotonic()
        with self.lock:
            self._put_back(work, again_at, now)
        self._wake_control()
        self.feed()

    def untried(self, work: RecordWork) -> None:
        """Record that the handler was not called for a work. It starts again as if it had not been taken."""
        now = time.monotonic()
        with self.lock:
            for gate in self._gates:
                gate.put_back(work)
            self._put_back(work, now, now)
        self._wake_control()
        self.feed()

    def give_up(self, failure: HeadwayError) -> None:
        """End the run with this error."""
        self.failure = self.failure or failure
        self._wake.set()

    def next(self) -> Job | None:
        """Return another job, if there is one and a slot is free."""
        with self.lock:
            job = self._next(time.monotonic())
        self._wake_control()
        return job

    def feed(self) -> float:
        """Start the jobs that can start now. Returns the current time, for `next_change`."""
        now = time.monotonic()
        self._failures.log_totals(now)
        gates = self._gates
        for gate in gates:
            gate.log(now)
        with self.lock:
            for gate in gates:
                if late := gate.timed_out(now, ending=self.ending):
                    work, again_at = late
                    self._put_back(work, again_at, now)
            jobs = self._next_jobs(now)
        self._wake_control()
        if jobs and self._executor:
            self._executor.start(jobs)
        if self._to_store:
            self._failures.store_all(self._to_store)
        return now

    # For the control thread

    def alarm(self, level: int, ready: int) -> None:
        """Wake the control thread once this level has fewer than `ready` ready works. -1 means never."""
        self._alarms[level] = ready

    def is_running(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Return how many works are running, of these partitions or in all.

        Each work that ends wakes the control thread until `unwatch` is called.
        """
        with self.lock:
            self._watched = True
            if partitions is None:
                return len(self._running)
            return sum(work.assignment.current and work.partition in partitions for work in self._running)

    def runs_stale(self, partition: TopicPartition) -> bool:
        """Return whether stale works of this partition are running.

        Each work that ends wakes the control thread until `unwatch` is called.
        """
        with self.lock:
            self._watched = True
            return any(work.partition == partition and not work.assignment.current for work in self._running)

    def slots_idle_behind_keyless(self) -> tuple[int, int] | None:
        """Return the numbers of idle and of all slots if half of them are idle because of records without a key.

        That is so if nothing is ready to start, and a record waits behind a running one that has no key. Otherwise
        returns None.
        """
        with self.lock:
            slots = self._slots_in_use()
            idle = slots - self._jobs
            if (
                2 * idle < slots
                or any(self.engine.ready)
                or self._is_stopped()
                or not self._may_start(time.monotonic())
            ):
                return None
            waits = any(
                work.record.raw_key is None and work.next is not None and work.next.state is WorkState.BEHIND
                for work in self._running
            )
            return (idle, slots) if waits else None

    def give_up_running(self, partitions: Collection[TopicPartition]) -> None:
        """Mark the running works of these partitions as stale: their results will be ignored."""
        with self.lock:
            self.engine.give_up([work for work in self._running if work.partition in partitions])

    def abandon(self) -> None:
        """End the run without waiting for the running works, which count as abandoned."""
        with self.lock:
            self.ending = True
            self._abandoned = len(self._running)
        now = time.monotonic()
        self._failures.end(now)
        for gate in self._gates:
            gate.log(now, at_end=True)

    def unwatch(self) -> None:
        """Record that the control thread no longer waits for works to end."""
        self._watched = False

    def next_change(self, fed_at: float) -> float | None:
        """Return when time alone can let a job start, or None if only an event can.

        `fed_at` is the time that `feed` returned last, and the result is later. Works that were due at `fed_at` were
        tried then. If one did not start, it waits for a slot, a probe or a suspect, and the thread that ends that wait
        starts the work or wakes the control thread.
        """
        with self.lock:
            self._opening_is_awaited = False
            if self._is_stopped():
                return None
            opens_at = self._opens_at()
            if opens_at is None:
                return None
            times = []
            due = self.engine.next_wake()
            if due is not None and due > fed_at:
                times.append(max(due, opens_at))
            if any(self.engine.ready) or (due is not None and due <= fed_at):
                times.append(opens_at)
                self._opening_is_awaited = opens_at > fed_at
        return min((time for time in times if time > fed_at), default=None)

    # With the lock: which jobs may start

    def _is_stopped(self) -> bool:
        return self.paused or self.ending or self._waits_for_outputs or self._executor is None

    def _slots_in_use(self) -> int:
        slots = self._slots
        for gate in self._gates:
            slots = gate.slots(slots)
        return slots

    def _may_start(self, now: float) -> bool:
        if self._jobs >= self._slots:
            return False
        for gate in self._gates:
            if not gate.may_start(self._jobs, now):
                self._await_opening(now)
                return False
        return True

    def _await_opening(self, now: float) -> None:
        """Wake the control thread, unless it is already waiting for the time at which the gates open."""
        if not self._opening_is_awaited and (at := self._opens_at()) is not None and at > now:
            self._opening_is_awaited = self._control_is_due = True

    def _opens_at(self) -> float | None:
        """Return when all gates can let a job start, or None if only an event can open one of them."""
        latest = -math.inf
        for gate in self._gates:
            at = gate.opens_at()
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def _next_jobs(self, now: float, most: float = math.inf) -> list[Job]:
        jobs: list[Job] = []
        while len(jobs) < most and (job := self._next(now)):
            jobs.append(job)
        return jobs

    def _next(self, now: float) -> Job | None:
        """Give the next job a slot, and return it. Returns None if no job can start."""
        if self.paused or self.ending or self._waits_for_outputs or self._executor is None:
            return None
        gates = self._gates
        for gate in gates:
            if kept := gate.kept_back(self._jobs):
                return kept
        while self._may_start(now):
            job: Job = self.engine.take(1, now) if self._batch_size is None else self._take_batch(now)
            for gate in gates:
                if gate.changes_wait(now):
                    self._control_is_due = True
            if not job:
                return None
            if gates or job[0].outcome or len(job) > 1:
                job = self._admit(job, now)
            else:  # nearly always
                self._running[job[0]] = None
                self._jobs += 1
            if job and not self._is_kept_back(job, now):
                level = job[0].assignment.level
                if self._alarms[level] >= 0 and self.engine.ready_of(level) < self._alarms[level]:
                    self._alarms[level] = -1
                    self._control_is_due = True
                return job
        return None

    def _take_batch(self, now: float) -> Job:
        size = self._batch_size or 1
        for gate in self._gates:
            size = gate.batch_size(size)
        return self.engine.take_batch(size, now, self._of_one_partition)

    def _admit(self, taken: Job, now: float) -> Job:
        """Give a slot to the works that the gates admit, and return them. Others end, or return to their lanes."""
        admitted = taken
        for gate in self._gates:
            if admitted:
                admitted = gate.admit(admitted, now)
        stored = []
        for work in taken:
            if work.outcome and work.outcome.verdict is None:
                self._finish(work, (), now)
                self._control_is_due = True  # to fetch into the buffer space, or to commit
            elif work.outcome:
                stored.append(work)
            elif work not in admitted:
                self.engine.retry(work, now, None, now)
        job = [work for work in admitted if not work.outcome]
        held = [*job, *stored]  # a work whose dead letter or schedule must be sent keeps its slot until that is stored
        if held:
            left = [len(held)] if len(held) > 1 else None
            for work in held:
                self._running[work] = left
            self._jobs += 1
        if stored:
            self._to_store += stored
            self._control_is_due = True
        return job

    def _is_kept_back(self, job: Job, now: float) -> bool:
        kept = False
        for gate in self._gates:
            kept |= gate.started(job, self._jobs, now)
        return kept

    # With the lock: how works end

    def _finish(self, work: RecordWork, outputs: Sequence[Any], now: float) -> None:
        self._leave(work, now)
        if self.engine.finish(work, now, outputs):
            self._done += 1
            if work.outcome and not outputs and isinstance(work.outcome.verdict, GiveUp):
                self._dead_letters += 1

    def _leave(self, work: RecordWork, now: float) -> None:
        for gate in self._gates:
            if gate.done(work, now):
                self._control_is_due = True
        self._end(work, now)

    def _end(self, work: RecordWork, now: float) -> None:
        if self._watched:
            self._control_is_due = True
        if work not in self._running:
            return
        left = self._running.pop(work)
        if left is not None:
            left[0] -= 1
        if left is None or not left[0]:
            self._jobs -= 1
        for gate in self._gates:
            if gate.ended(work, self._jobs, now):
                self._control_is_due = True

    def _put_back(self, work: RecordWork, at: float, now: float) -> None:
        self._end(work, now)
        self.engine.retry(work, at, None, now)
        self._control_is_due = True  # to wait for that time

    def _fail(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> bool:
        """Note a failure. Returns False if its partition has left. A work with a dead letter keeps its slot."""
        self._failed += 1
        ours = self.engine.fail(work, error, verdict, now)
        if ours and not isinstance(verdict, Again) and self._failures.is_stored(verdict):
            work.outcome = FinalOutcome(without_frames(error), verdict)
        else:
            self._end(work, now)
            self._control_is_due = True  # to wait for the time of its next attempt
        return ours

    # Without the lock

    def _wake_control(self) -> None:
        # Read without the lock. A thread sets it with the lock and calls this later, so one of them sees it.
        if self._control_is_due:
            self._control_is_due = False
            self._wake.set()
