"""Calls of handlers, for one record or for a batch, and the outcome of what they return or raise.

An executor makes the call, reports its outcome, and is given the next job in return.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headway.core.user_errors import description_of, is_error
from headway.errors import BatchError, ConfigError, HandlerError, HeadwayError
from headway.execution.context import Context
from headway.execution.dispatch import Dispatch
from headway.execution.jobs import Job, RecordWork
from headway.records import ConsumerRecord

Handler = Callable[[ConsumerRecord, Context], Any]
BatchHandler = Callable[[Sequence[ConsumerRecord], Sequence[Context]], Any]
Settle = Callable[[RecordWork, Any], Job | None]
"""A function (work, its handler's result) -> the next job."""


class Handlers(NamedTuple):
    """The functions of an executor for a job: `call`, and those that report its outcome."""

    call: Callable[[Job], Any]
    returned: Callable[[Job, Any], Job | None]
    raised: Callable[[Job, BaseException], Job | None]
    give_up: Callable[[HeadwayError], None]
    handler: Callable[..., Any]
    in_batches: bool


def for_each_record(handler: Handler, settle: Settle | None, dispatch: Dispatch) -> Handlers:
    """Return the calls of `handler(record, context)`; `settle` takes the result, without it the record is done."""
    done, failed = dispatch.done, dispatch.failed

    def returned(job: Job, result: Any) -> Job | None:
        if result is not None and (error := _not_run(result)):
            return failed(job[0], error)
        return settle(job[0], result) if settle else done(job[0])

    return Handlers(
        lambda job: handler(job[0].record, Context(job[0])),
        returned,
        lambda job, error: failed(job[0], error),
        dispatch.give_up,
        handler,
        in_batches=False,
    )


def for_batches(handler: BatchHandler, dispatch: Dispatch) -> Handlers:
    """Return the calls of `handler(records, contexts)`; a `BatchError` names the failed ones, else all or none did."""

    def returned(job: Job, result: Any) -> Job | None:
        if result is not None and (error := _not_run(result)):
            return raised(job, error)
        return dispatch.settle([(work, ()) for work in job], ())

    def raised(job: Job, error: BaseException) -> Job | None:
        failures = _failures(job, error)
        done = [(work, ()) for work in job if work not in failures]
        return dispatch.settle(done, failures.items())

    return Handlers(
        lambda job: handler([work.record for work in job], [Context(work) for work in job]),
        returned,
        raised,
        dispatch.give_up,
        handler,
        in_batches=True,
    )


def not_noted(error: BaseException) -> HandlerError:
    """Return the error for a job whose end cannot be noted any more: its slot would stay taken."""
    failure = HandlerError(
        f"What became of a record could not be noted: {description_of(error)}. It is not done, and comes again "
        "after a restart."
    )
    failure.__cause__ = error
    return failure


def collecting(handler: Handler) -> Handler:
    """Return a handler that returns the outputs it yields as a list, so that its whole body is within the call."""
    if inspect.isasyncgenfunction(handler):

        async def collect(record: ConsumerRecord, context: Context) -> list[Any]:
            return [output async for output in handler(record, context)]

        return collect
    return handler if is_coroutine_function(handler) else partial(_collect, handler)


def _collect(handler: Handler, record: ConsumerRecord, context: Context) -> Any:
    returned = handler(record, context)
    return list(returned) if isinstance(returned, Iterator) else returned


def is_generator_function(handler: Callable[..., Any]) -> bool:
    """Return whether a call of the handler would run nothing."""
    return inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)


def is_coroutine_function(handler: Callable[..., Any]) -> bool:
    """Return whether the handler is an `async def`, or an object with such a `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _not_run(result: Any) -> ConfigError | None:
    """Return the error for a call that returned something to run; a decorator or a lambda hides that before."""
    if not issubclass(type(result), (Coroutine, Generator, AsyncGenerator)):  # by its type, not by what it claims to be
        return None
    return ConfigError(
        f"The handler returned a {type(result).__name__}, of which nothing has run. If it is a decorator or a lambda "
        "around an async def, write it as an async def that awaits; if it yields, write it without yield."
    )


def _failures(job: Job, error: BaseException) -> Mapping[RecordWork, BaseException]:
    try:
        if issubclass(type(error), BatchError):
            return _named_failures(job, error)  # type: ignore[arg-type]
    except BaseException:  # an index out of bounds, or a user's own class: the meaning is unknown
        return dict.fromkeys(job, error)
    return dict.fromkeys(job, error)


def _named_failures(job: Job, error: BatchError) -> Mapping[RecordWork, BaseException]:
    failures = dict(error.failures)
    if not failures.keys() <= set(range(len(job))) or not all(map(is_error, failures.values())):
        raise ValueError("It names records that the batch has not, or errors that are none.")
    return {job[index]: failure for index, failure in failures.items()}
