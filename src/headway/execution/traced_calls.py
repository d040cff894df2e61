"""Makes a span of each call of a handler. Executors use this in place of the calls that it wraps.

The span begins and ends outside the handler's time limit, and without the lock of the dispatch, because exporters are
the user's code. If the handler runs in another process, the span is made here, so that it ends even if that process is
killed; the process only gets the context.
"""

from collections.abc import Callable
from contextvars import Token
from typing import Any, NamedTuple

from headway.core.retry import failure_behind
from headway.core.user_errors import class_name
from headway.errors import EarlierAttemptError, HeadwayError
from headway.execution.context import wall_time
from headway.execution.executor import HandlerCalls
from headway.execution.jobs import Job, RecordAttempt
from headway.tracing.carriers import carrier_of
from headway.tracing.spans import RunningSpan, Spans, harmless
from headway.tracing.traced_record import EarlierFailure, TracedRecord

Describe = Callable[[Any], TracedRecord]


class _OpenCall(NamedTuple):
    """A call that has not been reported. `token` is None if its context is current in another process."""

    span: RunningSpan
    token: Token[Any] | None


class TracedCalls:
    """Calls a handler in the context of a new span.

    Args:
        calls: The calls of the handler.
        spans: Makes the spans.
        group: The consumer group, or None if there is none.
        describe: Describes the record of an attempt.
    """

    def __init__(
        self, calls: HandlerCalls, spans: Spans, group: str | None = None, describe: Describe | None = None
    ) -> None:
        self._calls = calls
        self._spans = spans
        self._group = group
        self._describe = describe or described
        self._open: dict[RecordAttempt, _OpenCall] = {}  # by the first attempt of each job

    def call(self, job: Job) -> Any:
        """Make the call in the context of a new span. For an async handler, this returns the coroutine."""
        if (span := self._begin(job)) is not None:
            self._open[job[0]] = _OpenCall(span, span.enter())
        return self._calls.call(job)

    def carrier(self, job: Job) -> dict[str, str]:
        """Begin the span of a job that is sent to a process, and return the context in the form that is sent along."""
        # A process can give a job back. The job is then sent again, and its first span is never ended or exported.
        span = self._begin(job, is_first=job[0] not in self._open)
        if span is None:
            return {}
        self._open[job[0]] = _OpenCall(span, None)
        return carrier_of(span.context)

    @harmless
    def _begin(self, job: Job, *, is_first: bool = True) -> RunningSpan | None:
        records = [self._describe(attempt) for attempt in job]
        return self._spans.process(records, self._group, with_waits=is_first)

    def returned(self, job: Job, result: Any) -> Job | None:
        """End the span, and report the handler's return value. Outputs are sent in the context of the span."""
        return self._report(job, None, lambda: self._calls.returned(job, result))

    def raised(self, job: Job, error: BaseException) -> Job | None:
        """End the span as failed, and report the error. A dead letter is sent in the context of the span."""
        return self._report(job, error, lambda: self._calls.raised(job, error))

    def _report(self, job: Job, error: BaseException | None, report: Callable[[], Job | None]) -> Job | None:
        opened = self._open.pop(job[0], None)
        if opened is None:
            return report()
        opened.span.end(error)
        token = opened.span.enter() if opened.token is None else opened.token
        try:
            return report()
        finally:
            opened.span.leave(token)

    def give_up(self, failure: HeadwayError) -> None:
        """End the run with this error."""
        self._calls.give_up(failure)

    def close(self, timeout: float = 0.0) -> None:
        """End the spans of calls that were not reported, because the run ended before them."""
        while self._open:
            _, opened = self._open.popitem()
            opened.span.end(attributes={"headway.abandoned": True})


def described(attempt: RecordAttempt) -> TracedRecord:
    """Describe the record of an attempt."""
    return TracedRecord.of(attempt.record, attempt.number, earlier_failure(attempt))


def earlier_failure(attempt: Any) -> EarlierFailure | None:
    """Return the failure of the previous attempt, or None if this is the first attempt."""
    failure = attempt.failure
    if failure is None:
        return None
    error = failure_behind(failure.error)
    if issubclass(type(error), EarlierAttemptError):
        name = error.exception.rpartition(".")[2]  # type: ignore[attr-defined]
    else:
        name = class_name(type(error))
    return EarlierFailure(name, wall_time(failure.at))
