"""The base class of streams of results and streams of outputs. A thread runs the consumer while the caller iterates."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar

from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.runtime.sigterm import on_terminate

R = TypeVar("R")

Owner = asyncio.Task[Any] | None
"""The task whose event loop runs coroutine handlers. None for plain functions, or if the loop has its own thread."""

PutResult = Callable[[Any], Any]
"""A thread-safe function that adds an item to a stream."""


class Stream(ABC, Generic[R]):
    """An iterable and async iterable over the items of one run. It can be iterated over only once.

    If an error ended the run, the iteration raises that error. If the caller leaves the iteration, the consumer stops
    without draining.

    Args:
        stop: A function that stops the consumer. Its argument is True to drain.
    """

    drops_untaken_at_end: ClassVar[bool]
    """True if items that are still waiting when the run ends must be dropped, because the next run repeats them."""

    def __init__(self, stop: Callable[[bool], None]) -> None:
        self._stop = stop
        self.has_ended = False
        """True once the run has ended."""
        self._failure: BaseException | None = None
        self._is_forked = False
        register_for_forks(self)

    @abstractmethod
    def run(self, put: PutResult, owner: Owner) -> None:
        """Run the consumer until it is stopped, and call `put` with each item."""

    @abstractmethod
    def handed_out(self, item: Any) -> R:
        """Return the object that the caller gets for an item."""

    def finished(self, item: Any) -> None:
        """Record that the caller has finished with an item. Called when the caller requests the next item."""

    def __iter__(self) -> Iterator[R]:
        items: SimpleQueue[Any] = SimpleQueue()
        with self.running(items.put):
            while (item := items.get()) is not None and not self._drops_items():
                yield self.handed_out(item)
                self.check_process()
                self.finished(item)

    async def __aiter__(self) -> AsyncIterator[R]:
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()

        def put(item: Any) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        running = self._start(put, asyncio.current_task())
        try:
            with on_terminate(self._stop):
                while (item := await items.get()) is not None and not self._drops_items():
                    yield self.handed_out(item)
                    self.finished(item)
        finally:
            self._stop_run()
            # Even if the caller is cancelled, wait until the run has ended.
            await asyncio.shield(asyncio.to_thread(running.join))
        if self._failure:
            raise self._failure

    @contextmanager
    def running(self, put: PutResult) -> Iterator[None]:
        """Run the consumer in a thread during a `with` block. After the last item, `put` is called with None."""
        running = self._start(put, None)
        try:
            with on_terminate(self._stop):
                yield
        finally:
            self._stop_run()
            running.join()
        if self._failure:
            raise self._failure

    def forked(self) -> None:
        """Make this copy of the stream unusable, because its thread does not exist in a forked process."""
        self._is_forked = True

    def check_process(self) -> None:
        """Raise an error if this is a copy of the stream in a forked process."""
        if self._is_forked:
            raise made_before_fork("consumer")

    def _start(self, put: PutResult, owner: Owner) -> threading.Thread:
        def run() -> None:
            try:
                self.run(put, owner)
            except BaseException as error:
                self._failure = error
            finally:
                self.has_ended = True
                put(None)

        running = threading.Thread(target=run, name="headway-control", daemon=True)
        running.start()
        return running

    def _drops_items(self) -> bool:
        return self.drops_untaken_at_end and self.has_ended

    def _stop_run(self) -> None:
        if not self.has_ended:
            self._stop(False)
