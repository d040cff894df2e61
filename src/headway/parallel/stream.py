"""Streams of what a run gives, for the caller to iterate over, plain or async; the run has a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from headway.kafka.binding.forks import made_before_fork, tell_of_forks
from headway.runtime.sigterm import on_terminate

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Owner = asyncio.Task[Any] | None
"""The task in whose event loop handlers run; None if they have none, or one in a thread of its own."""


class Source(Protocol[R_co]):
    """A run that gives items, and what becomes of each."""

    @property
    def comes_again(self) -> bool:
        """True if items that are not taken before the run ends come again in a later run, and are left out."""
        ...

    def run(self, put: Callable[[Any], Any], owner: Owner) -> None:
        """Run until the consumer is stopped, and put the items."""

    def given(self, item: Any) -> R_co:
        """Return the object that the caller gets for an item."""

    def taken(self, item: Any) -> None:
        """Note that the caller asks for the next one."""


class Stream(Generic[R]):
    """An iterable and async iterable, for one iteration, of what a run gives.

    It raises the error that ended the run, if one did. Leaving the iteration stops the consumer without draining.
    """

    def __init__(self, source: Source[R], stop: Callable[[bool], None]) -> None:
        self._source = source
        self._stop = stop
        self.has_ended = False  # the run
        self._failure: BaseException | None = None
        self._is_forked = False
        tell_of_forks(self)

    def __iter__(self) -> Iterator[R]:
        items: SimpleQueue[Any] = SimpleQueue()
        with self.running(items.put):
            while (item := items.get()) is not None and self._counts():
                yield self._source.given(item)
                self.check_process()
                self._source.taken(item)

    async def __aiter__(self) -> AsyncIterator[R]:
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()
        put = lambda item: loop.call_soon_threadsafe(items.put_nowait, item)  # noqa: E731
        running = self._start(put, asyncio.current_task())
        try:
            with on_terminate(self._stop):
                while (item := await items.get()) is not None and self._counts():
                    yield self._source.given(item)
                    self._source.taken(item)
        finally:
            self._leave()
            await asyncio.shield(asyncio.to_thread(running.join))
        if self._failure:
            raise self._failure

    @contextmanager
    def running(self, put: Callable[[Any], Any]) -> Iterator[None]:
        """Run in a thread while the `with` block lasts, and put the items; at the end an item that is None."""
        running = self._start(put, None)
        try:
            with on_terminate(self._stop):
                yield
        finally:
            self._leave()
            running.join()
        if self._failure:
            raise self._failure

    def forked(self) -> None:
        """Give nothing any more: this object is the copy in a forked process, without the run's thread."""
        self._is_forked = True

    def check_process(self) -> None:
        """Raise `ClosedError` in a process that was forked from the run's."""
        if self._is_forked:
            raise made_before_fork("consumer")

    def _start(self, put: Callable[[Any], Any], owner: Owner) -> threading.Thread:
        def run() -> None:
            try:
                self._source.run(put, owner)
            except BaseException as error:
                self._failure = error
            finally:
                self.has_ended = True
                put(None)

        running = threading.Thread(target=run, name="headway-control", daemon=True)
        running.start()
        return running

    def _counts(self) -> bool:
        return not (self._source.comes_again and self.has_ended)

    def _leave(self) -> None:
        if not self.has_ended:
            self._stop(False)
