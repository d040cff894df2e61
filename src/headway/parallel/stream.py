"""Streams of what a run gives, for the caller to iterate over, plain or async; the run has a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.runtime.sigterm import on_terminate

R = TypeVar("R")


class Stream(Generic[R]):
    """An iterable and async iterable, for one iteration, of what a run gives.

    It raises the error that ended the run, if one did. Leaving the iteration stops the consumer without draining.
    """

    _ends_at_once = False  # True if what was not taken when the run has ended is left out, as it comes again

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self._stop = stop
        self._has_ended = False
        self._failure: BaseException | None = None
        self._is_forked = False
        tell_of_forks(self)

    def __iter__(self) -> Iterator[R]:
        items: SimpleQueue[Any] = SimpleQueue()
        running = self._start(items.put, None)
        try:
            with on_terminate(self._stop):
                while (item := items.get()) is not None and self._counts():
                    yield self._given(item)
                    self.check_process()
                    self._taken(item)
        finally:
            self._leave()
            running.join()
        if self._failure:
            raise self._failure

    async def __aiter__(self) -> AsyncIterator[R]:
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()
        put = lambda item: loop.call_soon_threadsafe(items.put_nowait, item)  # noqa: E731
        running = self._start(put, asyncio.current_task())
        try:
            with on_terminate(self._stop):
                while (item := await items.get()) is not None and self._counts():
                    yield self._given(item)
                    self._taken(item)
        finally:
            self._leave()
            await asyncio.shield(asyncio.to_thread(running.join))
        if self._failure:
            raise self._failure

    def _run(self, put: Callable[[Any], Any], owner: "asyncio.Task[Any] | None") -> None:
        """Run until the consumer is stopped, and put what is to be given; in the run's thread."""
        raise NotImplementedError

    def _given(self, item: Any) -> R:
        """Return what the caller gets for an item."""
        raise NotImplementedError

    def _taken(self, item: Any) -> None:
        """Note that the caller asks for the next one."""
        raise NotImplementedError

    def _start(self, put: Callable[[Any], Any], owner: "asyncio.Task[Any] | None") -> threading.Thread:
        def run() -> None:
            try:
                self._run(put, owner)
            except BaseException as error:
                self._failure = error
            finally:
                self._has_ended = True
                put(None)

        running = threading.Thread(target=run, name="headway-control", daemon=True)
        running.start()
        return running

    def forked(self) -> None:
        """Give nothing any more: this object is the copy in a forked process, without the run's thread."""
        self._is_forked = True

    def check_process(self) -> None:
        """Raise `ClosedError` in a process that was forked from the run's."""
        if self._is_forked:
            raise made_before_fork("consumer")

    def _counts(self) -> bool:
        return not (self._ends_at_once and self._has_ended)

    def _leave(self) -> None:
        if not self._has_ended:
            self._stop(False)
