"""Calls handlers with a record or a batch, and reports the outcomes to the dispatch.

An executor calls the handler, reports the outcome, and gets the next job in return.
"""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from typing import Any, Protocol

from headway.core.user_errors import is_error
from headway.declarations import called
from headway.errors import BatchError, ConfigError, HeadwayError
from headway.execution.context import Context
from headway.execution.dispatch import Dispatch
from headway.execution.handlers import WithContext, WithoutContext
from headway.execution.jobs import Job, RecordAttempt
from headway.records.record_types import ProducerRecord


class ResultReceiver(Protocol):
    """Receives the return values of handlers, and reports to the dispatch when the records are done."""

    def take_result(self, job: Job, returned: Any) -> Job | None:
        """Receive a handler's return value. Returns the next job for the freed slot, or None."""


class CallCheck(Protocol):
    """Checks each job before the handler is called. Only a supervised process has such a check."""

    def fail_as_before(self, job: Job) -> None:
        """Raise an error if the process died during the job's last attempt. The handler is then not called."""


class _JobCalls:
    """Calls a handler, and reports the outcome to the dispatch.

    Args:
        handler: The handler.
        dispatch: The dispatch that the outcomes are reported to.
        receiver: Receives the return values. Without a receiver, the records are done when the handler returns.
        check: Checks each job before the handler is called. Set only if this process is supervised.
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


class RecordCalls(_JobCalls):
    """Calls a handler of single records."""

    def call(self, job: Job) -> Any:
        """Call the handler with a record."""
        if self._check:
            self._check.fail_as_before(job)
        attempt, handler = job[0], self._handler
        if isinstance(handler, WithoutContext):  # call the wrapped handler directly, so that no context is created
            return handler.alone(attempt.record)
        return handler(attempt.record, Context(attempt))

    def _done(self, job: Job) -> Job | None:
        return self._dispatch.done(job[0])


class BatchCalls(_JobCalls):
    """Calls a handler of batches."""

    def call(self, job: Job) -> Any:
        """Call the handler with the records of a batch."""
        if self._check:
            self._check.fail_as_before(job)
        return self._handler([attempt.record for attempt in job], [Context(attempt) for attempt in job])

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """Report the exception that the handler raised. Returns the next job for the freed slot, or None.

        If the exception is a `BatchError`, only the records that it names have failed. Otherwise all records of the
        batch have failed.
        """
        failures = failures_of(job, error)
        done = [(attempt, ()) for attempt in job if attempt not in failures]
        return self._dispatch.complete_each(done, failures.items())


def not_run(result: Any, name: str = "The handler") -> ConfigError | None:
    """Return an error if a handler returned a coroutine or a generator, because nothing would run it.

    Otherwise returns None. This cannot be checked before the call, because a decorator or a lambda can hide what kind
    of function it wraps.
    """
    # `type` is used instead of `isinstance`, because an object can claim any `__class__`.
    if not issubclass(type(result), (Coroutine, Generator, AsyncGenerator)):
        return None
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()  # otherwise Python warns that the coroutine was never awaited
    return ConfigError(
        f"{name} returned a {type(result).__name__}, so its code has not run. If it is a decorator or a lambda around "
        "an async def, write it as an async def that awaits. If it yields, write it without yield."
    )


def _unsent(handler: WithContext, result: Any) -> ConfigError | None:
    """Return an error if the result contains a `ProducerRecord`, because it would not be sent, and None otherwise."""
    results = result if type(result) in (list, tuple) else (result,)
    if not any(issubclass(type(each), ProducerRecord) for each in results):
        return None
    name = called(handler.alone if isinstance(handler, WithoutContext) else handler)
    return ConfigError(
        f"The handler {name} returned a ProducerRecord, which would be lost, because run and run_async send nothing. "
        "Call run_and_produce, with batches=Batches(...) for a handler of batches, or return None. For a @worker, "
        "declare the topics with produces=. The consumed record is not done, so the next run handles it again."
    )


def failures_of(job: Job, error: BaseException) -> Mapping[RecordAttempt, BaseException]:
    """Return the failed attempts of a batch, each with its error.

    These are the attempts that a `BatchError` names. After any other error, all attempts have failed with that error.
    """
    # If the indexes are invalid, or the user's subclass of BatchError raises, all attempts count as failed.
    with contextlib.suppress(BaseException):
        if issubclass(type(error), BatchError):
            return _named_failures(job, error)  # type: ignore[arg-type]
    return dict.fromkeys(job, error)


def _named_failures(job: Job, error: BatchError) -> Mapping[RecordAttempt, BaseException]:
    failures = dict(error.failures)
    if not failures.keys() <= set(range(len(job))) or not all(map(is_error, failures.values())):
        raise ValueError("The BatchError names records that are not in the batch, or has values that are not errors.")
    return {job[index]: failure for index, failure in failures.items()}
