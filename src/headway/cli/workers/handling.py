"""A member's handler with what the command adds: counts, and logs that name the record."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headway.cli.workers.finding import find_workers
from headway.cli.workers.logs import handled_record, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.parallel.context import Context
from headway.records import ConsumerRecord


class Handling:
    """`run` is to be handed to a `ParallelConsumer`, and is a coroutine function if the handler is one."""

    def __init__(self, handler: Callable[[ConsumerRecord, Context], Any]) -> None:
        self.handled = self.failed = self.running = 0
        self.cancelled = 0
        """How many coroutines were cancelled at the end; threads cannot be, and go on running."""
        self.ending = False
        self.changed = threading.Event()
        self._handler = handler
        self._lock = threading.Lock()
        self.run = self._await if inspect.iscoroutinefunction(handler) else self._call

    def _call(self, record: ConsumerRecord, context: Context) -> Any:
        with self._counted(record):
            return self._handler(record, context)

    async def _await(self, record: ConsumerRecord, context: Context) -> Any:
        with self._counted(record):
            return await self._handler(record, context)

    @contextmanager
    def _counted(self, record: ConsumerRecord) -> Iterator[None]:
        token = handled_record.set(record)
        self._count(running=1)
        try:
            yield
        except BaseException as error:
            self._count(running=-1, failed=1, cancelled=self.ending and isinstance(error, asyncio.CancelledError))
            raise
        else:
            self._count(running=-1, handled=1)
        finally:
            handled_record.reset(token)

    def _count(self, *, running: int, handled: int = 0, failed: int = 0, cancelled: int = 0) -> None:
        with self._lock:
            self.running += running
            self.handled += handled
            self.failed += failed
            self.cancelled += cancelled
        self.changed.set()


@dataclass(frozen=True, slots=True)
class HandlingElsewhere:
    """A handler for the processes of `executor="process"`: what goes there is its name, and how it logs."""

    worker: str
    index: int
    logs: LogStyle

    def __call__(self, record: ConsumerRecord, context: Context) -> Any:
        handler = _arrive(self)
        token = handled_record.set(record)
        try:
            return handler(record, context)
        finally:
            handled_record.reset(token)


@functools.cache
def _arrive(elsewhere: HandlingElsewhere) -> Callable[[ConsumerRecord, Context], Any]:
    """Its handler, in a process that logs as its parent does from now on."""
    log_to_stderr(elsewhere.logs, elsewhere.worker, elsewhere.index)
    [worker] = find_workers([elsewhere.worker]).values()
    return worker.handler
