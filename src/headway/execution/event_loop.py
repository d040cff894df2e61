"""Runs handlers that are coroutine functions, in the caller's event loop or in a loop with a thread of its own."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from headway.core.user_errors import description_of
from headway.execution.executor import Executor, HandlerCalls, not_noted
from headway.execution.jobs import Job
from headway.execution.time_limit import limit_coroutine
from headway.runtime.handler_loops import handler_event_loop

log = logging.getLogger(__name__)

# After this many jobs, a task lets other tasks run even if its handler never waits.
_YIELD_EVERY = 16
_CLEAN_UP_WITHIN = 1.0  # the minimum time that cancelled handlers have to clean up, in seconds


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str | None = None) -> None:
        self.loop = handler_event_loop()
        self._ended = self.loop.create_future()
        self._loop_thread = threading.Thread(
            target=_serve, args=(self.loop, self._ended), name=name or "headway-event-loop", daemon=True
        )
        self._loop_thread.start()

    def close(self, timeout: float) -> None:
        """Cancel the tasks of the loop, and end the loop.

        Waits up to `timeout` seconds for the loop's thread to end.
        """
        # `call_soon_threadsafe` raises a `RuntimeError` if the loop is already closed. This happens if `close` is
        # called again after an interrupt.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_set, self._ended)
        self._loop_thread.join(timeout)


class EventLoop(Executor):
    """Runs handlers in tasks of an event loop. A task runs one job after another, and ends when there is no next job.

    Without a `loop`, the executor starts an event loop in a new thread. `owner` is the task that waits for the
    consumer.
    """

    def __init__(
        self,
        calls: HandlerCalls,
        loop: asyncio.AbstractEventLoop | None = None,
        time_limit: float | None = None,
        owner: "asyncio.Task[Any] | None" = None,
    ) -> None:
        self._calls = calls
        self._time_limit = time_limit
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references to its tasks
        self._own: LoopThread | None = None
        self._owner = owner
        self._closing = False
        if loop is None:
            self._own = LoopThread()
            loop = self._own.loop
        self._loop = loop

    def start(self, jobs: Sequence[Job]) -> None:
        """Run these jobs. Any thread can call this."""
        self._loop.call_soon_threadsafe(self._start, jobs)

    def close(self, timeout: float) -> None:
        """Cancel the running handlers.

        Waits for them to end, for up to `timeout` seconds but at least for up to one second.
        """
        self._closing = True
        within = max(timeout, _CLEAN_UP_WITHIN)
        if self._own:
            self._own.close(within)
            return
        # Raised if the handlers take too long, or the loop has ended.
        with contextlib.suppress(TimeoutError, RuntimeError):
            asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(within)

    def _ends(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a handler's task was cancelled because the run ends.

        The handler's call then counts as not completed, even if it returns or raises another error. The owner is
        checked too, because `asyncio.run` cancels all tasks of the loop, including the owner and the handlers.
        """
        return self._is_over() and task.cancelling() > 0

    def _is_over(self) -> bool:
        return self._closing or (self._owner is not None and self._owner.cancelling() > 0)

    def _start(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            next_job = [job]
            task = self._loop.create_task(self._run(next_job))
            self._tasks.add(task)
            task.add_done_callback(partial(self._leave, next_job))

    def _leave(self, next_job: list[Job], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # If a handler cancels all tasks of the loop, it can cancel this task between two handler calls. The next job
        # must still run.
        if next_job and not self._is_over():
            self._start(next_job)

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, next_job: list[Job]) -> None:
        calls = self._calls
        call = limit_coroutine(calls.call, self._time_limit) if self._time_limit else calls.call
        task = asyncio.current_task(self._loop)
        assert task is not None  # noqa: S101  # a coroutine always runs in a task
        count = 0
        try:
            while next_job:
                job = next_job.pop()
                try:
                    result = await call(job)
                except BaseException as error:  # includes CancelledError: a cancelled call is a failed attempt
                    if self._ends(task):
                        return  # nothing is reported, so the next run handles the record again
                    following = calls.raised(job, error)
                else:
                    if self._ends(task):
                        return
                    following = calls.returned(job, result)
                if following:
                    next_job.append(following)
                if task.cancelling():
                    return  # this task would cancel the next call, so `_leave` makes a new task for it
                count += 1
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        except Exception as error:
            self._calls.give_up(not_noted(error))


def _serve(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    # As `asyncio.run` does, this cancels the remaining tasks at the end, waits for them, and closes async generators.
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        run_whatever_is_raised(runner.get_loop(), ended)
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            run_whatever_is_raised(loop, asyncio.gather(*tasks, return_exceptions=True))


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def run_whatever_is_raised(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any]) -> None:
    """Run a loop that handlers share until `ended` is done, or the loop is closed.

    If a task or callback raises SystemExit or KeyboardInterrupt, or calls `loop.stop()`, the loop returns. The loop is
    then run again, because otherwise the tasks of all handlers would stop.
    """
    while not (ended.done() or loop.is_closed()):
        try:
            loop.run_until_complete(ended)
        except RuntimeError:
            if ended.done() or loop.is_running():
                raise
            log.error("A handler stopped the event loop that all handlers share. The loop continues.")
        except (SystemExit, KeyboardInterrupt) as error:
            log.error(
                "A task or callback that runs in the handlers' event loop raised %s. The consumer continues.",
                description_of(error),
            )
