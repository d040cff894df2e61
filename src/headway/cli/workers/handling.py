"""Wraps a member's handler so that all its logs name the record."""

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
    """Wrap a worker's handler so that all its logs name the record or batch.

    An `async def` handler stays a coroutine function.
    """
    handler = worker.call  # never a generator function, so the handler runs entirely within the call

    # The body is written twice, because a context manager would cost more time than the body itself, which only notes
    # the running record for the supervisor.
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

    handle.__qualname__ = handle_async.__qualname__ = called(worker.handler)  # errors show this name of the handler
    return handle_async if is_coroutine_function(handler) else handle


@dataclass(frozen=True)
class HandlingElsewhere:
    """A handler for the child processes of `executor="process"`. Only its name and the log style are sent to them.

    Errors show the name of the user's function, `handler`.
    """

    worker: str
    handler: str
    index: int
    logs: LogStyle

    def __post_init__(self) -> None:
        vars(self)["__qualname__"] = self.handler

    def __call__(self, record: Handled, context: Any) -> Any:
        return _find_handler(self)(record, context)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.worker, self.handler, self.index, self.logs)


def _restore(worker: str, handler: str, index: int, logs: LogStyle) -> HandlingElsewhere:
    """Create the handler in the child process. From then on, the child process logs like its parent."""
    log_to_stderr(logs, worker, index)
    return HandlingElsewhere(worker, handler, index, logs)


@functools.cache
def _find_handler(elsewhere: HandlingElsewhere) -> WithContext:
    """Find the worker's handler."""
    [worker] = find_workers([elsewhere.worker]).values()
    return with_record_in_logs(worker)
