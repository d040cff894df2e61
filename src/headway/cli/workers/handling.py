"""A member's handler with the command's addition: logs that name the record."""

import functools
from dataclasses import dataclass
from typing import Any

from headway.cli.workers.logs import Handled, handled_record, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.declarations import called, is_coroutine_function
from headway.execution.handlers import WithContext
from headway.workers.find_workers import find_workers
from headway.workers.worker import Worker


def with_record_in_logs(worker: Worker) -> WithContext:
    """Return a worker's handler, a coroutine function if it is one; all that it logs names the record, or the batch."""
    handler = worker.call  # it yields nothing, so that all of it runs within the call

    # Twice the same code: a context manager for both would take longer than noting the running record for the
    # supervisor.
    def handle(record: Handled, context: Any) -> Any:
        token = handled_record.set(record)
        try:
            return handler(record, context)
        finally:
            handled_record.reset(token)

    async def handle_async(record: Handled, context: Any) -> Any:
        token = handled_record.set(record)
        try:
            return await handler(record, context)
        finally:
            handled_record.reset(token)

    handle.__qualname__ = handle_async.__qualname__ = called(worker.handler)  # as errors name it
    return handle_async if is_coroutine_function(handler) else handle


@dataclass(frozen=True)
class HandlingElsewhere:
    """A handler for the processes of `executor="process"`: only its name and its log style are sent there.

    Errors name it as `handler`, the user's function.
    """

    worker: str
    handler: str
    index: int
    logs: LogStyle

    def __post_init__(self) -> None:
        vars(self)["__qualname__"] = self.handler

    def __call__(self, record: Handled, context: Any) -> Any:
        return _handler(self)(record, context)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.worker, self.handler, self.index, self.logs)


def _arrive(worker: str, handler: str, index: int, logs: LogStyle) -> HandlingElsewhere:
    """Return the handling in a process that logs as its parent does from now on."""
    log_to_stderr(logs, worker, index)
    return HandlingElsewhere(worker, handler, index, logs)


@functools.cache
def _handler(elsewhere: HandlingElsewhere) -> WithContext:
    """Return the worker's handler."""
    [worker] = find_workers([elsewhere.worker]).values()
    return with_record_in_logs(worker)
