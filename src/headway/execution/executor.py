"""The base class of executors, which run jobs, and the protocol that executors use to call handlers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headway.core.user_errors import description_of
from headway.errors import HandlerError, HeadwayError
from headway.execution.jobs import Job


class HandlerCalls(Protocol):
    """Calls a handler for a job, and reports the outcome to the dispatch."""

    def call(self, job: Job) -> Any:
        """Call the handler and return the result, which is a coroutine if the handler is async."""

    def returned(self, job: Job, result: Any) -> Job | None:
        """Report the handler's return value. Returns the next job for the freed slot, or None."""

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """Report the exception that the handler raised. Returns the next job for the freed slot, or None."""

    def give_up(self, failure: HeadwayError) -> None:
        """End the run with this error."""


class Executor(ABC):
    """Runs jobs on threads, in an event loop, or in processes. It calls the handler through its `HandlerCalls`."""

    @abstractmethod
    def start(self, jobs: Sequence[Job]) -> None:
        """Run these jobs. Any thread can call this."""

    def wait_until_started(self, is_stopping: Callable[[], bool]) -> None:  # noqa: B027 - most executors need not wait
        """Wait until jobs can run, or until the run is stopping. Raises `LifespanError` if a lifespan fails."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """End the executor. Waits up to `timeout` seconds for running handlers."""


def not_noted(error: BaseException) -> HandlerError:
    """Make the error that ends the run because the outcome of a job could not be reported to the dispatch.

    The run cannot continue, because the job would keep its slot forever.
    """
    failure = HandlerError(
        f"The outcome of a record could not be reported: {description_of(error)}. The next run will handle "
        "the record again."
    )
    failure.__cause__ = error
    return failure
