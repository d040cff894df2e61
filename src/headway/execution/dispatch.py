"""Lets the executor and the control thread share the engine. The executor takes jobs and reports their outcomes.

A thread that reports the end of a job takes the next job in the same call, so a free slot is filled at once, without
waking another thread. The control thread is woken only if it has something to do. The lock is held for a few
microseconds at a time. It is never held while a handler runs, during a call to Kafka, or during any operation that lets
another thread run.

At most one thread of the executor waits for the lock. While it waits, other threads that have an outcome to report add
the report to a queue and become idle; the waiting thread then takes all queued reports. If every thread waited for the
lock, a thousand of them could pile up whenever the owner of the lock is descheduled, and the operating system would
have to wake each one.

Optional features are implemented as gates (`gate.py`). The dispatch calls only the gates that were passed to it.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from headway.core.engine.attempt import FinalOutcome
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.engine import Engine
from headway.core.engine.open_lanes import OpenLanes
from headway.core.retry import Again, GiveUp, KeepInPlace, Retries, Verdict
from headway.core.user_errors import without_frames
from headway.errors import HeadwayError
from headway.execution.executor import Executor
from headway.execution.failures import Failures, Letters, Moves, Schedules
from headway.execution.gate import Gate
from headway.execution.jobs import Job, RecordAttempt
from headway.execution.measurements import Measurements
from headway.execution.metrics import ParallelMetrics
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.wakeup import Wakeup

_MOST_TENANTS_SHOWN = 5


class Dispatch:
    """Keeps track of the running jobs, and chooses which job starts next.

    All methods are thread-safe. Code that uses `engine` directly must hold `lock`. The executor and the stores report
    to the dispatch, so they are created after the dispatch. They depend on the handler, so a consumer creates them when
    its run begins, and passes them to `begin`. No job starts before `begin` is called.

    Args:
        engine: The engine, which holds the fetched records in their lanes.
        retries: The rule that decides what follows a failed attempt.
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
        # Keep this at 30 attributes or fewer. With more, CPython cannot share the keys of instance dictionaries, and
        # each attribute access takes longer.
        self.lock = threading.Lock()
        self.engine = engine
        engine.count_slots(self)
        self.paused = False  # while this is True, no job starts, but running jobs continue
        self.ending = False  # once this is True, no further job starts
        self.failure: HeadwayError | None = None
        # True while no job starts because the caller has not taken enough of the stored outputs.
        self._waits_for_outputs = False
        self._slots = slots
        self._gates = tuple(gates)
        self._measurements: Measurements | None = None
        self._is_observed = bool(self._gates)  # True if there are gates or measurements to call for each attempt
        self._wake = wake
        self._retries = retries
        # `begin` replaces this with a `Failures` that can store dead letters and schedules.
        self._failures = Failures(retries)
        self._executor: Executor | None = None  # None until the run begins
        self._batch_size: int | None = None  # None for a handler of single records
        self._of_one_partition = False
        # Attempts that succeeded, with their outputs. The thread that waits for `lock` reports them to the engine.
        self._reports: deque[tuple[RecordAttempt, Sequence[Any]]] = deque()
        self._waiting = threading.Lock()  # held by the one thread that waits for `lock` in order to take the reports
        # The attempts that occupy a slot. All attempts of a batch share a list whose only item is the number of
        # attempts in the batch that have not ended. An attempt on a lost partition stays here until the executor
        # reports its end.
        self._running: dict[RecordAttempt, list[int] | None] = {}
        self._jobs = 0
        self._to_store: deque[RecordAttempt] = deque()  # attempts whose record must be stored elsewhere now
        self._control_is_due = False
        self._alarms = [-1] * len(engine.ready)
        self._watched = False
        self._opening_is_awaited = False  # True if the control thread will wake when the gates open
        self._done = self._failed = self._dead_letters = self._abandoned = 0

    def add(self, gate: Gate) -> None:
        """Add a gate. Adding the same gate twice has no effect."""
        if gate not in self._gates:
            self._gates = (*self._gates, gate)  # a new tuple, because another thread can be iterating over the old one
            self._is_observed = True

    def measure(self, measurements: Measurements) -> None:
        """Pass all starts and ends of attempts from now on to these measurements. The caller must hold the lock."""
        self._measurements = measurements
        self._is_observed = True

    def begin(
        self,
        executor: Executor,
        *,
        letters: Letters | None = None,
        schedules: Schedules | None = None,
        moves: Moves | None = None,
        batch_size: int | None = None,
        of_one_partition: bool = False,
        is_supervised: bool = False,
    ) -> None:
        """Let jobs start from now on.

        Args:
            executor: The executor that runs the jobs.
            letters: The store of dead letters, if there is one.
            schedules: The store of records that will be retried much later, if there is one.
            moves: The store of records that an operator moves to other topics, if there is one.
            batch_size: The maximum number of records in a job if the handler takes batches. Without it, each job has
                one record.
            of_one_partition: True if all records of a job must belong to one partition.
            is_supervised: True if a supervisor takes care of records that kill this process.
        """
        self._failures = Failures(self._retries, letters, schedules, moves, is_supervised=is_supervised)
        self._batch_size, self._of_one_partition = batch_size, of_one_partition
        self._executor = executor

    def wait_for_outputs(self, waits: bool) -> None:
        """Stop starting jobs if `waits` is True, and start them again if it is False.

        The caller passes True while too many stored outputs wait to be taken.
        """
        self._waits_for_outputs = waits
        if not waits:
            self._wake.set()

    def end(self) -> None:
        """Start no further job. Running jobs continue."""
        self.ending = True

    def metrics(self) -> ParallelMetrics:
        """Return how many records are done, running and waiting, and the metrics of the gates."""
        with self.lock:
            of_gates = {name: count for gate in self._gates for name, count in gate.metrics().items()}
            return ParallelMetrics(
                done=self._done + sum(self.engine.skipped),
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

    # For edits of records that wait. The caller of these methods holds the lock.

    def open_lanes(self, partition: TopicPartition) -> OpenLanes[ConsumerRecord] | None:
        """Open the lanes of a partition; see `Engine.open_lanes`."""
        running = [each for each in self._running if each.assignment.current and each.partition == partition]
        return self.engine.open_lanes(partition, running)

    def ended_waiting(self, attempt: RecordAttempt, now: float) -> None:
        """Record that an edit has ended a record that had not started."""
        self._done += 1
        for gate in self._gates:
            gate.done(attempt, now)

    # For executors

    def done(self, attempt: RecordAttempt, outputs: Sequence[Any] = ()) -> Job | None:
        """Record that an attempt has succeeded. Returns the next job for the freed slot, or None."""
        if not self.lock.acquire(blocking=False):
            self._reports.append((attempt, outputs))
            return self._take_reports()
        try:
            now = time.monotonic()
            self._finish(attempt, outputs, now)
            job = self._next(now)
        finally:
            self.lock.release()
        if self._control_is_due:
            self._wake_control()
        return job

    def _take_reports(self) -> Job | None:
        if not self._waiting.acquire(blocking=False):
            return None  # the thread that waits for the lock takes this report and starts the next job
        try:
            self.lock.acquire()
        finally:
            self._waiting.release()
        try:
            now = time.monotonic()
            slots = 0
            while self._reports:  # other threads can still add reports
                attempt, outputs = self._reports.popleft()
                self._finish(attempt, outputs, now)
                slots += 1
            jobs = self._next_jobs(now, slots)
        finally:
            self.lock.release()
        self._wake_control()
        if jobs[1:] and self._executor:
            self._executor.start(jobs[1:])
        return jobs[0] if jobs else None

    def complete(self, job: Job, error: BaseException | None = None) -> Job | None:
        """Record that all attempts of a job have succeeded or that all have failed. Returns the next job, or None."""
        if error is None:
            return self.complete_each([(attempt, ()) for attempt in job], ())
        return self.complete_each((), [(attempt, error) for attempt in job])

    def complete_each(
        self, done: Iterable[tuple[RecordAttempt, Sequence[Any]]], failed: Iterable[tuple[RecordAttempt, BaseException]]
    ) -> Job | None:
        """Record the attempts of a job that succeeded, with their outputs, and the attempts that failed.

        Returns the next job, or None.
        """
        now = time.monotonic()
        # The user's code, which includes log handlers, is called without the lock, because that code can call the
        # consumer.
        judged = [(attempt, error, self._failures.decide(attempt, error, now)) for attempt, error in failed]
        ours = []
        with self.lock:
            for attempt, outputs in done:
                self._finish(attempt, outputs, now)
            for attempt, error, verdict in judged:
                for gate in self._gates:
                    verdict = gate.judged(attempt, error, verdict, now)  # noqa: PLW2901 - each gate can replace it
                verdict = self._failures.final(error, verdict)  # noqa: PLW2901
                if self._measurements is not None and attempt.outcome is None:
                    self._measurements.judged(attempt, error, verdict)
                if self._fail(attempt, error, verdict, now):
                    ours.append((attempt, error, verdict))
            job = self._next(now)
        self._wake_control()
        for gate in self._gates:
            gate.log(now)
        for attempt, error, verdict in ours:
            if fatal := self._failures.act_on(attempt, error, verdict, now):
                self.give_up(fatal)
        return job

    def complete_together(self, job: Job, outputs: Sequence[Any]) -> Job | None:
        """Record that a batch of one partition is done. The offsets and outputs of the batch are committed together.

        Returns the next job, or None.
        """
        now = time.monotonic()
        with self.lock:
            for attempt in job:
                self._leave(attempt, now)
            if self.engine.finish_together(job, now, outputs):
                self._done += len(job)
                if self._measurements is not None:
                    self._measurements.done(job[0], len(job))
            following = self._next(now)
        self._wake_control()
        return following

    def complete_elsewhere(self, job: Job, error: BaseException | None = None) -> None:
        """Do what `complete` does, for a thread outside the executor. The next job is passed to the executor."""
        following = self.complete(job, error)
        if following and self._executor:
            self._executor.start((following,))

    def not_scheduled(self, attempt: RecordAttempt, error: BaseException) -> None:
        """Record that a record could not be stored as a schedule. The attempt fails with this error instead."""
        self.complete_elsewhere((attempt,), error)

    def letters_committed(self, count: int) -> None:
        """Count dead letters that a transaction has committed."""
        with self.lock:
            self._dead_letters += count

    def stored(self, attempt: RecordAttempt, outputs: Sequence[Any] = ()) -> None:
        """Record that a record is done, because its outputs, dead letter or schedule are stored.

        With transactions they are not stored yet: they are in `outputs`, and the next transaction stores them.
        """
        now = time.monotonic()
        with self.lock:
            self._finish(attempt, outputs, now)
        self._wake_control()
        self.feed()

    def not_stored(self, attempt: RecordAttempt, again_at: float) -> None:
        """Record that Kafka refused a dead letter or schedule, which must be sent again at `again_at`.

        The attempt gives back its slot. The handler is not called again for this record, and later records of the same
        lane wait.
        """
        now = time.monotonic()
        with self.lock:
            self._put_back(attempt, again_at, now)
        self._wake_control()
        self.feed()

    def untried(self, attempt: RecordAttempt) -> None:
        """Return an attempt to its lane because the handler was not called for it. It will start as if it were new."""
        now = time.monotonic()
        with self.lock:
            for gate in self._gates:
                gate.put_back(attempt)
            if self._measurements is not None:
                self._measurements.put_back(attempt)
            self._put_back(attempt, now, now)
        self._wake_control()
        self.feed()

    def give_up(self, failure: HeadwayError) -> None:
        """End the run with this error, unless an earlier error has ended it."""
        self.failure = self.failure or failure
        self._wake.set()

    def next(self) -> Job | None:
        """Return another job if a job can start and a slot is free, and None otherwise."""
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
                    attempt, again_at = late
                    self._put_back(attempt, again_at, now)
            jobs = self._next_jobs(now)
        self._wake_control()
        if jobs and self._executor:
            self._executor.start(jobs)
        if self._to_store:
            self._failures.store_all(self._to_store)
        return now

    # For the control thread

    def alarm(self, level: int, ready: int) -> None:
        """Wake the control thread when this level has fewer than `ready` records that can start. -1 means never."""
        self._alarms[level] = ready

    def is_running(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Return the number of running attempts, on these partitions or in total.

        From this call until `unwatch` is called, the end of each attempt wakes the control thread.
        """
        with self.lock:
            self._watched = True
            if partitions is None:
                return len(self._running)
            return sum(attempt.assignment.current and attempt.partition in partitions for attempt in self._running)

    def runs_stale(self, partition: TopicPartition) -> bool:
        """Return whether any stale attempt on this partition is still running. Its result will be ignored.

        From this call until `unwatch` is called, the end of each attempt wakes the control thread.
        """
        with self.lock:
            self._watched = True
            return any(attempt.partition == partition and not attempt.assignment.current for attempt in self._running)

    def slots_idle_behind_keyless(self) -> tuple[int, int] | None:
        """Return the number of idle slots and of all slots, if records without a key keep at least half of them idle.

        Records without a key are the reason if no record is ready to start, and some record waits because an earlier
        record without a key is running. Returns None if more slots are busy, or if slots are idle for another reason.
        """
        with self.lock:
            slots = self.usable_slots()
            idle = slots - self._jobs
            if (
                2 * idle < slots
                or any(self.engine.ready)
                or self._is_stopped()
                or not self._may_start(time.monotonic())
            ):
                return None
            waits = any(
                attempt.record.raw_key is None
                and attempt.next is not None
                and attempt.next.state is AttemptState.BEHIND
                for attempt in self._running
            )
            return (idle, slots) if waits else None

    def is_idle_though_ready(self, now: float) -> bool:
        """Return whether no job is running, although records are ready and nothing prevents them from starting."""
        with self.lock:
            if self._jobs or self._is_stopped() or not self.engine.can_start():
                return False
            return self._may_start(now)

    def give_up_running(self, partitions: Collection[TopicPartition]) -> None:
        """Mark the running attempts on these partitions as stale, so that their results will be ignored."""
        with self.lock:
            self.engine.give_up([attempt for attempt in self._running if attempt.partition in partitions])

    def abandon(self) -> None:
        """End the run without waiting for running attempts, which are counted as abandoned."""
        with self.lock:
            self.ending = True
            self._abandoned = len(self._running)
        now = time.monotonic()
        self._failures.end(now)
        for gate in self._gates:
            gate.log(now, at_end=True)

    def unwatch(self) -> None:
        """Record that the control thread no longer waits for attempts to end."""
        self._watched = False

    def next_change(self, fed_at: float) -> float | None:
        """Return the next time at which a job can start without a further event, or None if there is no such time.

        `fed_at` is the time that the last call of `feed` returned. The result is always later than `fed_at`, because
        that call has tried to start every attempt that was due. An attempt that `feed` could not start waits for a
        slot, a probe or a suspect, and the thread that ends this wait starts the attempt or wakes the control thread.
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

    # Which jobs can start. The caller of these methods holds the lock.

    def _is_stopped(self) -> bool:
        return self.paused or self.ending or self._waits_for_outputs or self._executor is None

    def usable_slots(self) -> int:
        """Return the number of all slots that the gates allow, taken or free."""
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
        """Wake the control thread so that it waits for the time at which the gates open, unless it already does."""
        if not self._opening_is_awaited and (at := self._opens_at()) is not None and at > now:
            self._opening_is_awaited = self._control_is_due = True

    def _opens_at(self) -> float | None:
        """Return the time at which all gates let a job start, or None if a gate waits for an event."""
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
        """Take the next job, give it a slot, and return it. Returns None if no job can start."""
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
            else:  # the fast path, without gates and batches
                self._running[job[0]] = None
                self._jobs += 1
            if job and not (self._is_observed and self._is_kept_back(job, now)):
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
        """Give a slot to the attempts that all gates admit, and return them.

        The others end or go back to their lanes.
        """
        admitted = taken
        for gate in self._gates:
            if admitted:
                admitted = gate.admit(admitted, now)
        stored = []
        for attempt in taken:
            if attempt.outcome and attempt.outcome.verdict is None:
                self._finish(attempt, (), now)
                # The control thread fetches records into the freed buffer space, or commits offsets.
                self._control_is_due = True
            elif attempt.outcome:
                stored.append(attempt)
            elif attempt not in admitted:
                self.engine.retry(attempt, now, None, now)
        job = [attempt for attempt in admitted if not attempt.outcome]
        held = [*job, *stored]  # a record keeps its slot until its dead letter or schedule is stored
        if held:
            left = [len(held)] if len(held) > 1 else None
            for attempt in held:
                self._running[attempt] = left
            self._jobs += 1
        if stored:
            self._to_store += stored
            self._control_is_due = True
        return job

    def _is_kept_back(self, job: Job, now: float) -> bool:
        if self._measurements is not None:
            self._measurements.started(job, now)
        kept = False
        for gate in self._gates:
            kept |= gate.started(job, self._jobs, now)
        return kept

    # How attempts end. The caller of these methods holds the lock.

    def _finish(self, attempt: RecordAttempt, outputs: Sequence[Any], now: float) -> None:
        self._leave(attempt, now)
        if self.engine.finish(attempt, now, outputs):
            self._done += 1
            if self._is_observed and self._measurements is not None:
                self._measurements.done(attempt, 1)
            if attempt.outcome and not outputs and isinstance(attempt.outcome.verdict, GiveUp):
                self._dead_letters += 1

    def _leave(self, attempt: RecordAttempt, now: float) -> None:
        for gate in self._gates:
            if gate.done(attempt, now):
                self._control_is_due = True
        self._end(attempt, now)

    def _end(self, attempt: RecordAttempt, now: float) -> None:
        if self._watched:
            self._control_is_due = True
        if attempt not in self._running:
            return
        left = self._running.pop(attempt)
        if left is not None:
            left[0] -= 1
        if left is None or not left[0]:
            self._jobs -= 1
        if not self._is_observed:
            return
        if self._measurements is not None:
            self._measurements.ended(attempt, now)
        for gate in self._gates:
            if gate.ended(attempt, self._jobs, now):
                self._control_is_due = True

    def _put_back(self, attempt: RecordAttempt, at: float, now: float) -> None:
        self._end(attempt, now)
        self.engine.retry(attempt, at, None, now)
        self._control_is_due = True  # the control thread must wake at that time

    def _fail(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict, now: float) -> bool:
        """Record a failed attempt. Returns False if the record's partition is no longer assigned to this consumer.

        If the record becomes a dead letter or a schedule, the attempt keeps its slot until Kafka has stored it.
        """
        if attempt.outcome is None:  # otherwise the failure was counted before the record could not be scheduled
            self._failed += 1
        ours = self.engine.fail(attempt, error, verdict, now)
        if ours and not isinstance(verdict, Again | KeepInPlace) and self._failures.is_stored(verdict):
            attempt.outcome = FinalOutcome(without_frames(error), verdict)
        else:
            self._end(attempt, now)
            self._control_is_due = True  # the control thread must wake in time for the next attempt
        return ours

    # Methods that are called without the lock

    def _wake_control(self) -> None:
        # The flag is read without the lock. No wake-up is lost, because each thread that sets the flag holds the lock
        # while it does so, and calls this method afterwards.
        if self._control_is_due:
            self._control_is_due = False
            self._wake.set()
