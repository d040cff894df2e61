"""Calls handlers with a record or a batch, and reports their outcomes to the dispatch.

An executor makes the call, reports its outcome, and gets the next job in return.
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
"""A handler as executors call it: `handler(record, context)`, or with batches `handler(records, contexts)`."""

Handler = Callable[[ConsumerRecord, Context], Any] | Callable[[ConsumerRecord], Any]
"""A handler as users declare it, with or without a second parameter for the context."""

BatchHandler = Callable[[Sequence[ConsumerRecord], Sequence[Context]], Any] | Callable[[Sequence[ConsumerRecord]], Any]
_NAMES_OF_CONTEXTS = ("context", "contexts")


class ResultReceiver(Protocol):
    """Takes the return values of handlers, and reports to the dispatch when their records are done."""

    def take_result(self, job: Job, returned: Any) -> Job | None:
        """Take a handler's return value. Returns the next job, if there is one for this slot."""


class CallCheck(Protocol):
    """Checks a job before its call; a supervised process does so."""

    def fail_as_before(self, job: Job) -> None:
        """Raise an error if the last attempt of the job ended with its process. The handler is not called then."""


class _WithoutContext(partial[Any]):
    """A handler of one argument that can be called with two. As a `partial` it is recognised as async if it is."""

    alone: Callable[[Any], Any]  # the handler itself: if it is a `partial`, the constructor merges it with this one

    def __new__(cls, handler: Callable[[Any], Any]) -> Self:
        made = super().__new__(cls, handler)
        made.alone = handler
        return made

    def __call__(self, record: Any, context: Any) -> Any:
        return self.alone(record)


def with_context(handler: Callable[..., Any], first: str = "record", second: str = "context") -> WithContext:
    """Return a handler that can be called with two arguments, even if the given one takes only the first.

    A handler that can take both gets both. But a second parameter with a default keeps its default, unless its name or
    annotation shows that it is the context. Raises `ConfigError` for a handler that can take neither one nor two.
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
            f"The handler {called(handler)} cannot be called with ({first}), nor with ({first}, {second}). Declare one "
            "or two parameters, and give others before, as functools.partial does."
        )
    if takes_one and takes_two:  # perhaps a decorator with `*args` that passes them to a handler that takes only one
        takes_two = takes(handler, 2, as_promised=True) or not takes(handler, 1, as_promised=True)
        takes_two = takes_two and not _keeps_its_default(handler)
    return handler if takes_two else _WithoutContext(handler)


def _keeps_its_default(handler: Callable[..., Any]) -> bool:
    """Return whether the second parameter has a default and is not the context, such as `lambda row, factor=2`."""
    try:
        given = inspect.signature(handler).parameters.values()
    except Exception:  # of a builtin, or of a user's own `__signature__`
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
        receiver: Takes the return values. Without it, the records are done when the handler returns.
        check: Checks each job before its call, in a supervised process.
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
        """Report what the handler returned. Returns the next job, if there is one for this slot."""
        if result is not None:
            if error := not_run(result):
                return self.raised(job, error)
            if self._receiver is None and (unsent := _unsent(self._handler, result)):
                self.give_up(unsent)
                return None
        return self._receiver.take_result(job, result) if self._receiver else self._done(job)

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """Report what the handler raised. Returns the next job, if there is one for this slot."""
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
        if isinstance(handler, _WithoutContext):  # calling the inner handler saves the making of a context
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
        """Report the failure of the records that a `BatchError` names, or after any other error of all records."""
        failures = failures_of(job, error)
        done = [(work, ()) for work in job if work not in failures]
        return self._dispatch.complete_each(done, failures.items())


def collecting(handler: WithContext) -> WithContext:
    """Return a handler that returns its yielded outputs as a list, so that its whole body runs within the call."""
    if is_async_generator_function(handler):

        async def collect(record: ConsumerRecord, context: Context) -> list[Any]:
            return [output async for output in handler(record, context)]

        return collect
    return handler if is_coroutine_function(handler) else partial(_collect, handler)


def _collect(handler: WithContext, record: ConsumerRecord, context: Context) -> Any:
    returned = handler(record, context)
    return list(returned) if isinstance(returned, Iterator) else returned


def not_run(result: Any, name: str = "The handler") -> ConfigError | None:
    """Return the error for a call that returned a coroutine or generator, which nobody would run; None otherwise.

    A decorator or a lambda can hide what kind of function it calls, so this shows only when the handler returns.
    """
    # The type is asked, because an object can claim any `__class__`.
    if not issubclass(type(result), (Coroutine, Generator, AsyncGenerator)):
        return None
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()  # otherwise Python warns that it was never awaited
    return ConfigError(
        f"{name} returned a {type(result).__name__}, of which nothing has run. If it is a decorator or a lambda "
        "around an async def, write it as an async def that awaits. If it yields, write it without yield."
    )


def _unsent(handler: WithContext, result: Any) -> ConfigError | None:
    """Return the error for a returned `ProducerRecord` that would not be sent. None for any other result."""
    results = result if type(result) in (list, tuple) else (result,)
    if not any(issubclass(type(each), ProducerRecord) for each in results):
        return None
    name = called(handler.alone if isinstance(handler, _WithoutContext) else handler)
    return ConfigError(
        f"The handler {name} returned a ProducerRecord, and run and run_async send nothing: it would be lost. "
        "Call run_and_produce, with batches=Batches(...) for a handler of batches, or return None. The record is "
        "not done, and comes again. For a @worker, declare the topics with produces=."
    )


def failures_of(job: Job, error: BaseException) -> Mapping[RecordWork, BaseException]:
    """Return the failed works of a batch with their errors: those that a `BatchError` names, or all of them."""
    with contextlib.suppress(BaseException):  # of an index out of bounds, or of a user's subclass: all have failed
        if issubclass(type(error), BatchError):
            return _named_failures(job, error)  # type: ignore[arg-type]
    return dict.fromkeys(job, error)


def _named_failures(job: Job, error: BatchError) -> Mapping[RecordWork, BaseException]:
    failures = dict(error.failures)
    if not failures.keys() <= set(range(len(job))) or not all(map(is_error, failures.values())):
        raise ValueError("It names records that are not in the batch, or values that are not errors.")
    return {job[index]: failure for index, failure in failures.items()}
