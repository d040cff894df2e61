"""Handlers that are plain functions, on threads."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from headway.core.work import Work
from headway.parallel.context import Context
from headway.parallel.reports import Report, Reports
from headway.records import ConsumerRecord

Handler = Callable[[ConsumerRecord, Context], Any]


class Threads:
    """Threads that stay, as many as were ever needed at a time."""

    def __init__(self, handler: Handler, reports: Reports) -> None:
        self._handler = handler
        self._reports = reports
        self._queue: SimpleQueue[Work[ConsumerRecord] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, works: Sequence[Work[ConsumerRecord]], running: int) -> None:
        """Run these, with which `running` works run in all: so many threads never let one wait."""
        while len(self._threads) < running:
            self._add_thread()
        for work in works:
            self._queue.put(work)

    def _add_thread(self) -> None:
        # As daemons, so that a handler that never ends does not keep the program from ending.
        name = f"headway-handler-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while work := self._queue.get():
            self._reports.add(self._run(work))

    def _run(self, work: Work[ConsumerRecord]) -> Report:
        try:
            self._handler(work.record, Context(work))
        except BaseException as error:  # whatever a handler raises is that record's failure, and not the thread's
            return Report(work, error)
        return Report(work, None)

    def close(self, timeout: float) -> None:
        """End the threads; waits for handlers that still run, up to `timeout` seconds in all."""
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
