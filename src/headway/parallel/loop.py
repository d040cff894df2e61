"""Handlers that are coroutine functions, on an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headway.core.work import Work
from headway.parallel.context import Context
from headway.parallel.reports import Report, Reports
from headway.records import ConsumerRecord

AsyncHandler = Callable[[ConsumerRecord, Context], Awaitable[Any]]


class EventLoop:
    """A running event loop; what its handlers share (a client, a pool) is to be made in one of them."""

    def __init__(self, handler: AsyncHandler, reports: Reports) -> None:
        self._handler = handler
        self._reports = reports
        self._ended: list[Report] = []  # in this turn of the loop
        self._tasks: set[asyncio.Task[None]] = set()  # a loop itself keeps tasks only weakly
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="headway-event-loop", daemon=True)
        self._thread.start()

    def start(self, works: Sequence[Work[ConsumerRecord]], running: int) -> None:
        """Run these, a task each."""
        self._loop.call_soon_threadsafe(self._start, works)

    def close(self, timeout: float) -> None:
        """Cancel what still runs and end the loop; waits up to `timeout` seconds for it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)

    def _serve(self) -> None:
        # As `asyncio.run` ends: what was left is cancelled and seen through, generators are closed.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _start(self, works: Sequence[Work[ConsumerRecord]]) -> None:
        for work in works:
            task = self._loop.create_task(self._run(work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Work[ConsumerRecord]) -> None:
        try:
            await self._handler(work.record, Context(work))
        except BaseException as error:  # a cancellation too: the attempt did not succeed
            self._report(Report(work, error))
        else:
            self._report(Report(work, None))

    def _report(self, report: Report) -> None:
        # Once a turn: woken by the first of many, the control thread would fight for the GIL with the others.
        self._ended.append(report)
        if len(self._ended) == 1:
            self._loop.call_soon(self._report_all)

    def _report_all(self) -> None:
        ended, self._ended = self._ended, []
        self._reports.add_all(ended)
