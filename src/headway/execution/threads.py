"""Runs handlers that are plain functions, in a pool of threads."""

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from headway.execution.executor import Executor, HandlerCalls, not_noted
from headway.execution.jobs import Job
from headway.execution.time_limit import ThreadLimit
from headway.runtime.switch_interval import one_thread_more


class Threads(Executor):
    """Runs jobs in a pool of threads, which run until `close` is called. A thread that ends a job takes the next job.

    The pool has at most `most` threads, one for each slot. For a moment there can be one more job than there are free
    threads, because a thread gives back its slot just before it becomes idle.
    """

    def __init__(self, calls: HandlerCalls, most: int, time_limit: float | None = None) -> None:
        self._most = most
        self._limit = ThreadLimit(time_limit) if time_limit else None
        self._calls = calls
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # One item for each idle thread. A semaphore is not used, because an interrupt could leave it locked (see
        # `runtime.flag`).
        self._idle: SimpleQueue[None] = SimpleQueue()

    def start(self, jobs: Sequence[Job]) -> None:
        """Run these jobs. Any thread can call this."""
        for job in jobs:
            self._queue.put(job)
            try:
                self._idle.get_nowait()
            except Empty:
                if len(self._threads) < self._most:
                    self._add_thread()

    def replace_one(self) -> None:
        """Allow one more thread, which replaces a thread whose handler does not return."""
        self._most += 1

    def _add_thread(self) -> None:
        # These are daemon threads, so that a handler that never returns does not keep the program from ending.
        thread = threading.Thread(target=self._serve, name=f"headway-handler-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    @one_thread_more()
    def _serve(self) -> None:
        while job := self._queue.get():
            try:
                self._run(job)
            except BaseException as error:
                self._calls.give_up(not_noted(error))
            self._idle.put(None)

    def _run(self, first: Job) -> None:
        calls = self._calls
        call = self._limit.limit(calls.call) if self._limit else calls.call
        job: Job | None = first
        while job:
            try:
                result = call(job)
            except BaseException as error:  # any exception is a failed attempt, and must not end the thread
                job = calls.raised(job, error)
            else:
                job = calls.returned(job, result)

    def close(self, timeout: float) -> None:
        """End the threads. Waits up to `timeout` seconds in total for running handlers."""
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.is_alive():  # a thread that has not started yet cannot be joined, but ends by itself
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._limit:
            self._limit.close()
