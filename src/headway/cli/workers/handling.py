"""A member's handler with what the command adds: logs that name the record."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.cli.workers.logs import handled_record, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.execution.context import Context
from headway.records import ConsumerRecord
from headway.worker_discovery import find_workers


def with_record_in_logs(handler: Callable[[ConsumerRecord, Context], Any]) -> Callable[[ConsumerRecord, Context], Any]:
    """The same handler, a coroutine function if it is one; what is logged in it names the record."""

    # Twice the same, as a context manager for both would take longer than noting for the supervisor what runs.
    def handle(record: ConsumerRecord, context: Context) -> Any:
        token = handled_record.set(record)
        try:
            return handler(record, context)
        finally:
            handled_record.reset(token)

    async def handle_async(record: ConsumerRecord, context: Context) -> Any:
        token = handled_record.set(record)
        try:
            return await handler(record, context)
        finally:
            handled_record.reset(token)

    return handle_async if inspect.iscoroutinefunction(handler) else handle


@dataclass(frozen=True, slots=True)
class HandlingElsewhere:
    """A handler for the processes of `executor="process"`: what goes there is its name, and how it logs."""

    worker: str
    index: int
    logs: LogStyle

    def __call__(self, record: ConsumerRecord, context: Context) -> Any:
        return with_record_in_logs(_arrive(self))(record, context)


@functools.cache
def _arrive(elsewhere: HandlingElsewhere) -> Callable[[ConsumerRecord, Context], Any]:
    """Its handler, in a process that logs as its parent does from now on."""
    log_to_stderr(elsewhere.logs, elsewhere.worker, elsewhere.index)
    [worker] = find_workers([elsewhere.worker]).values()
    return worker.handler
