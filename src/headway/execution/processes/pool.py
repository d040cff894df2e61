"""The pool of processes.

Each process has a thread that sends chunks of jobs to the process and reports the outcomes.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from functools import partial
from multiprocessing import resource_tracker
from queue import Empty, SimpleQueue
from typing import Any

from headway.core.engine.suspects import deaths_of, died
from headway.errors import BatchError, HandlerProcessError, HeadwayError, LifespanError
from headway.execution.dispatch import Dispatch
from headway.execution.executor import Executor, HandlerCalls
from headway.execution.handlers import WithContext
from headway.execution.jobs import Job
from headway.execution.lifespan import SHUT_DOWN_WITHIN, Life
from headway.execution.processes.messages import Deserializers, loaded, pickled_job, pickled_start, pickled_with
from headway.execution.processes.process import Process

_AHEAD = 2  # the maximum number of chunks in a process, including the chunk that it is working on
# How long a process should work on a chunk, in seconds. If chunks were shorter, waking the process would cost too much.
# If they were longer, some processes would be idle while others work on the last chunks.
_CHUNK_TIME = 0.01
_FIRST_CHUNK = 1  # the number of jobs in the first chunk of a process


class Processes(Executor):
    """Runs jobs in processes. Each process has a driver, a thread that sends it chunks and reports the outcomes.

    If calls are traced, `carrier_of` returns the context of a job's span, which is sent to the process with the job.
    """

    def __init__(
        self,
        calls: HandlerCalls,
        handler: WithContext,
        dispatch: Dispatch,
        deserializers: Deserializers,
        *,
        in_batches: bool,
        count: int,
        slots: int,
        time_limit: float | None,
        life: Life | None = None,
        carrier_of: Callable[[Job], Mapping[str, str]] | None = None,
    ) -> None:
        shared = life.for_process() if life else None
        self._start_arguments = pickled_start(handler, deserializers, shared), in_batches, carrier_of is not None
        self._pickle_job = partial(pickled_with, carrier_of) if carrier_of else pickled_job
        self._life = life
        self._largest = max(1, slots // (_AHEAD * count))
        self._calls = calls
        self._dispatch = dispatch
        self._time_limit = time_limit
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._closing = False
        self._started: list[Future[None]] = [Future() for _ in range(count)]
        self._drivers = [
            threading.Thread(target=self._drive, args=[started], name=f"headway-process-{index}", daemon=True)
            for index, started in enumerate(self._started)
        ]
        for driver in self._drivers:
            driver.start()

    def start(self, jobs: Sequence[Job]) -> None:
        """Run these jobs. Any thread can call this."""
        for job in jobs:
            self._queue.put(job)

    def wait_until_started(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until all processes have entered their lifespans, if the handler has a lifespan."""
        if not self._life:
            return
        while not is_stopping() and wait(self._started, 0.1, "FIRST_EXCEPTION").not_done:
            if any(each.done() and each.exception() for each in self._started):
                break
        for each in self._started:
            if each.done():
                each.result()

    def close(self, timeout: float) -> None:
        """End the processes. Waits up to `timeout` seconds for running handlers, and then kills the processes."""
        deadline = time.monotonic() + timeout
        for _ in self._drivers:
            self._queue.put(None)
        for driver in self._drivers:
            driver.join(max(0.0, deadline - time.monotonic()))
        self._closing = True
        for driver in self._drivers:
            driver.join(5.0 + (SHUT_DOWN_WITHIN if self._life else 0.0))

    # Methods that run in the drivers' threads

    def _drive(self, started: "Future[None]") -> None:
        _keep_signals_from_children()
        try:
            going_on = True
            while going_on:
                with closing(Process(*self._start_arguments, life=self._life, pickle_job=self._pickle_job)) as child:
                    going_on = self._work_with(child, started)
        except (HandlerProcessError, LifespanError) as error:
            self._give_up(error, started)
        except Exception as error:
            failure = HandlerProcessError(f"A process for the handler could not be started or used: {error!r}")
            self._give_up(failure, started)

    def _give_up(self, error: HeadwayError, started: "Future[None]") -> None:
        self._dispatch.give_up(error)
        if not started.done():
            started.set_exception(error)

    def _work_with(self, child: Process, started: "Future[None]") -> bool:
        """Run jobs in a process until the run ends or the process dies.

        Returns True if the process must be replaced.
        """
        size = _FIRST_CHUNK
        try:
            child.wait_until_ready(self._is_closing)
            if not started.done():
                started.set_result(None)
            while self._fill(child, size):
                size = self._await(child, size)
        except EOFError:
            if not self._closing:
                self._report_death(child)
                return True
        return False

    def _fill(self, child: Process, size: int) -> bool:
        """Send waiting jobs to the child, or wait for a job if the child has none. Returns False when the run ends."""
        # A chunk of a single job means that jobs take a long time. In this case the child gets no second chunk, so that
        # the next job stays in the queue, where another process can take it.
        while child.chunks < (_AHEAD if size > 1 else 1):
            jobs = self._collect(size, wait=not child.chunks)
            if jobs is None:
                return child.chunks > 0
            if not jobs:
                return True
            child.send(jobs)
        return True

    def _collect(self, size: int, *, wait: bool) -> list[Job] | None:
        """Take a chunk of jobs from the queue, and leave the other processes their share of the waiting jobs.

        Returns None at the end of the run.
        """
        jobs: list[Job] = []
        with contextlib.suppress(Empty):
            while len(jobs) < size:
                job = self._queue.get(block=wait and not jobs)
                if job is None:
                    # The other drivers, and the next call of this method, must also get the None that marks the end.
                    self._queue.put(None)
                    return jobs or None
                jobs.append(job)
                size = min(size, len(jobs) + self._queue.qsize() // len(self._drivers))
        return jobs

    def _await(self, child: Process, size: int) -> int:
        """Report outcomes until the process has finished a chunk. Returns the number of jobs for the next chunk."""
        while True:
            said = child.receive(self._time_limit, self._is_closing)
            for outcome, seconds in said.outcomes:
                job = child.jobs.popleft()
                # The tenant's handler time must not include the time that the job waited in the process.
                for attempt in job:
                    attempt.started = time.monotonic() - seconds
                self._report(job, *loaded(outcome))
            for job in child.given_back(said):
                self._again(job)
            if said.seconds is not None:
                return max(1, min(2 * size, self._largest, int(_CHUNK_TIME / said.seconds)))

    def _report(self, job: Job, error: BaseException | None, result: Any) -> None:
        following = self._calls.returned(job, result) if error is None else self._calls.raised(job, error)
        if following:
            self._queue.put(following)

    def _report_death(self, child: Process) -> None:
        at, how = child.death()
        for index, job in enumerate(child.jobs):
            if index == at:
                self._report(job, _death_of(job, how) if isinstance(how, str) else how, None)
            else:
                self._again(job)

    def _again(self, job: Job) -> None:
        for attempt in job:
            attempt.started = time.monotonic()
            self._dispatch.untried(attempt)

    def _is_closing(self) -> bool:
        return self._closing


def _death_of(job: Job, how: str) -> BaseException:
    """Return the error for a job whose process died.

    For a batch, it is a `BatchError` with an error for each record.
    """
    errors = [died(how, deaths_of(attempt.failure) + 1, alone=len(job) == 1) for attempt in job]
    return BatchError(dict(enumerate(errors))) if len(job) > 1 else errors[0]


def _keep_signals_from_children() -> None:
    """Block SIGINT and SIGTERM in this thread and in the children that it starts.

    A child must not end on Ctrl-C, because the consumer's process ends it. The signals are blocked in this thread
    because a child inherits the signal mask of the thread that starts it. This thread itself needs no signals, because
    Python's signal handlers run in the main thread.
    """
    resource_tracker.ensure_running()  # the tracker must be started first, because starting it unblocks the signals
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
