"""Calls handlers with a record or a batch, and reports the outcomes to the dispatch.

An executor calls the handler, reports the outcome, and gets the next job in return.
"""

import contextlib
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, get_args

from headway.core.user_errors import is_error
from headway.declarations import called, is_async_generator_function, is_coroutine_function, shown, takes
from headway.errors import BatchError, ConfigError, HeadwayError
from headway.execution.context import Context
from headway.execution.dispatch import Dispatch
from headway.execution.jobs import Job, RecordWork
from headway.records.record_types import ConsumerRecord, ProducerRecord

WithContext = Callable[[Any, Any], Any]
"""A handler that executors call as `handler(record, context)`, or with batches as `handler(records, contexts)`."""

Handler = Callable[[ConsumerRecord, Context], Any] | Callable[[ConsumerRecord], Any]
"""A handler as users declare it, with or without a second parameter for the context."""

BatchHandler = Callable[[Sequence[ConsumerRecord], Sequence[Context]], Any] | Callable[[Sequence[ConsumerRecord]], Any]
_NAMES_OF_CONTEXTS = ("context", "contexts")


class ResultReceiver(Protocol):
    """Receives the return values of handlers, and reports to the dispatch when the records are done."""

    def take_result(self, job: Job, returned: Any) -> Job | None:
        """Receive a handler's return value. Returns the next job for the freed slot, or None."""


class CallCheck(Protocol):
    """Checks each job before the handler is called. Only a supervised process has such a check."""

    def fail_as_before(self, job: Job) -> None:
        """Raise an error if the process died during the last attempt of the job, so that the handler is not called."""


class _WithoutContext(partial[Any]):
    """Wraps a handler that takes only the record, so that it can be called with record and context.

    The class is a `partial`, so that `inspect` recognises the wrapper of an async handler as async.
    """

    alone: Callable[[Any], Any]  # the handler itself; `func` can be an inner function, as nested partials are flattened

    def __new__(cls, handler: Callable[[Any], Any]) -> Self:
        made = super().__new__(cls, handler)
        made.alone = handler
        return made

    def __call__(self, record: Any, context: Any) -> Any:
        return self.alone(record)


def with_context(handler: Callable[..., Any], first: str = "record", second: str = "context") -> WithContext:
    """Return a handler that can be called with two arguments, even if the given handler takes only the record.

    A handler that can take two arguments gets both. But a second parameter with a default keeps its default, unless its
    name or annotation shows that it is the context. Raises `ConfigError` for a handler that can be called with neither
    one nor two arguments.
    """
    if isinstance(handler, _WithoutContext):
        return handler
    if not callable(handler):
        raise ConfigError(
            f"The handler is {shown(handler)}; it must be a function ({first}), or ({first}, {second}) to get the "
            f"{second} too."
        )
    takes_one, takes_two = takes(handler, 1), takes(handler, 2)
    if not takes_one and not takes_two:
        raise ConfigError(
            f"The handler {called(handler)} can be called neither with ({first}) nor with ({first}, {second}). Declare "
            "one or two parameters, and bind all others beforehand, for example with functools.partial."
        )
    if takes_one and takes_two:  # a decorator with `*args` might pass them to a function that takes only the record
        takes_two = takes(handler, 2, as_promised=True) or not takes(handler, 1, as_promised=True)
        takes_two = takes_two and not _keeps_its_default(handler)
    return handler if takes_two else _WithoutContext(handler)


def _keeps_its_default(handler: Callable[..., Any]) -> bool:
    """Return whether the second parameter has a default and is not the context, as in `lambda row, factor=2: …`."""
    try:
        given = inspect.signature(handler).parameters.values()
    except Exception:  # builtins can lack a signature, and a user's own `__signature__` can raise
        return False
    positional = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or positional[1].default is inspect.Parameter.empty:
        return False
    return positional[1].name not in _NAMES_OF_CONTEXTS and not _is_context(positional[1].annotation)


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return re.search(r"\bContext\b", annotation) is not None
    return annotation is Context or any(map(_is_context, get_args(annotation)))


def needs_no_context(handler: WithContext) -> bool:
    """Return whether a handler takes only the record."""
    return isinstance(handler, _WithoutContext)


class _Calls:
    """Calls a handler, and reports the outcome to the dispatch.

    Args:
        handler: The handler.
        dispatch: The dispatch that the outcomes are reported to.
        receiver: Receives the return values. Without it, the records are done when the handler returns.
        check: Checks each job before the handler is called, if this process is supervised.
    """

    def __init__(
        self,
        handler: WithContext,
        dispatch: Dispatch,
        receiver: ResultReceiver | None = None,
        check: CallCheck | None = None,
    ) -> None:
        self._handler = handler
        self._dispatch = dispatch
        self._receiver = receiver
        self._check = check

    def returned(self, job: Job, result: Any) -> Job | None:
        """Report the handler's return value. Returns the next job for the freed slot, or None."""
        if result is not None:
            if error := not_run(result):
                return self.raised(job, error)
            if self._receiver is None and (unsent := _unsent(self._handler, result)):
                self.give_up(unsent)
                return None
        return self._receiver.take_result(job, result) if self._receiver else self._done(job)

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """Report the exception that the handler raised. Returns the next job for the freed slot, or None."""
        return self._dispatch.complete(job, error)

    def _done(self, job: Job) -> Job | None:
        return self._dispatch.complete(job)

    def give_up(self, failure: HeadwayError) -> None:
        """End the run with this error."""
        self._dispatch.give_up(failure)


class RecordCalls(_Calls):
    """Calls a handler of single records."""

    def call(self, job: Job) -> Any:
        """Call the handler with a record."""
        if self._check:
            self._check.fail_as_before(job)
        work, handler = job[0], self._handler
        if isinstance(handler, _WithoutContext):  # call the inner handler, so that no context is made
            return handler.alone(work.record)
        return handler(work.record, Context(work))

    def _done(self, job: Job) -> Job | None:
        return self._dispatch.done(job[0])


class BatchCalls(_Calls):
    """Calls a handler of batches."""

    def call(self, job: Job) -> Any:
        """Call the handler with the records of a batch."""
        if self._check:
            self._check.fail_as_before(job)
        return self._handler([work.record for work in job], [Context(work) for work in job])

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """Report the exception that the handler raised. Returns the next job for the freed slot, or None.

        If it is a `BatchError`, only the records that it names have failed. Otherwise all records of the batch have.
        """
        failures = failures_of(job, error)
        done = [(work, ()) for work in job if work not in failures]
        return self._dispatch.complete_each(done, failures.items())


def collecting(handler: WithContext) -> WithContext:
    """Wrap a handler that yields, so that its whole body runs within the call. The outputs are returned as a list."""
    if is_async_generator_function(handler):

        async def collect(record: ConsumerRecord, context: Context) -> list[Any]:
            return [output async for output in handler(record, context)]

        return collect
    return handler if is_coroutine_function(handler) else partial(_collect, handler)


def _collect(handler: WithContext, record: ConsumerRecord, context: Context) -> Any:
    returned = handler(record, context)
    return list(returned) if isinstance(returned, Iterator) else returned


def not_run(result: Any, name: str = "The handler") -> ConfigError | None:
    """Return the error for a call that returned a coroutine or generator, because nothing would run it.

    Returns None for any other result. A decorator or a lambda can hide the kind of function that it calls, so this
    cannot be checked before the handler returns.
    """
    # `type` is used instead of `isinstance`, because an object can claim any `__class__`.
    if not issubclass(type(result), (Coroutine, Generator, AsyncGenerator)):
        return None
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()  # otherwise Python warns that it was never awaited
    return ConfigError(
        f"{name} returned a {type(result).__name__}, so its code has not run. If it is a decorator or a lambda around "
        "an async def, write it as an async def that awaits. If it yields, write it without yield."
    )


def _unsent(handler: WithContext, result: Any) -> ConfigError | None:
    """Return the error for a result with a `ProducerRecord` that would not be sent, or None for any other result."""
    results = result if type(result) in (list, tuple) else (result,)
    if not any(issubclass(type(each), ProducerRecord) for each in results):
        return None
    name = called(handler.alone if isinstance(handler, _WithoutContext) else handler)
    return ConfigError(
        f"The handler {name} returned a ProducerRecord, which would be lost, because run and run_async send nothing. "
        "Call run_and_produce, with batches=Batches(...) for a handler of batches, or return None. For a @worker, "
        "declare the topics with produces=. The consumed record is not done, so the next run handles it again."
    )


def failures_of(job: Job, error: BaseException) -> Mapping[RecordWork, BaseException]:
    """Return the failed attempts of a batch with their errors.

    These are the attempts that a `BatchError` names. After any other error all attempts have failed with that error.
    """
    # If the indexes are invalid, or a user's subclass of BatchError raises, all attempts have failed.
    with contextlib.suppress(BaseException):
        if issubclass(type(error), BatchError):
            return _named_failures(job, error)  # type: ignore[arg-type]
    return dict.fromkeys(job, error)


def _named_failures(job: Job, error: BatchError) -> Mapping[RecordWork, BaseException]:
    failures = dict(error.failures)
    if not failures.keys() <= set(range(len(job))) or not all(map(is_error, failures.values())):
        raise ValueError("The BatchError names records that are not in the batch, or has values that are not errors.")
    return {job[index]: failure for index, failure in failures.items()}
