"""The messages that are sent through the pipes of the pool. Nothing else is unpickled."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from headway.core.engine.attempt import FailedAttempts
from headway.core.retry import REASON, failure_behind
from headway.core.user_errors import attribute, class_name, description_of, is_error, text_of
from headway.errors import BatchError, ConfigError, FatalError, HandlerProcessError, RetriableError, RetryLater
from headway.execution.jobs import Job, RecordAttempt
from headway.records.record_types import ConsumerRecord, Header

HandlerOutcome = tuple[BaseException | None, Any]

NOTHING: Final = -1
"""The value of the running job's index while no job is running."""


class Deserializers(NamedTuple):
    """The functions that deserialise keys and values.

    They must be importable, because pickle sends only their names.
    """

    key: Callable[..., Any] | None
    value: Callable[..., Any] | None


class SentMessage(NamedTuple):
    """A picklable copy of a consumed message, with the methods of `headway.records.record_types.Message`."""

    fields: tuple[Any, ...]

    def topic(self) -> str:
        return self.fields[0]  # type: ignore[no-any-return]

    def partition(self) -> int:
        return self.fields[1]  # type: ignore[no-any-return]

    def offset(self) -> int:
        return self.fields[2]  # type: ignore[no-any-return]

    def key(self) -> bytes | None:
        return self.fields[3]  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        return self.fields[4]  # type: ignore[no-any-return]

    def headers(self) -> Sequence[Header]:
        return self.fields[5]  # type: ignore[no-any-return]

    def timestamp(self) -> tuple[int, int]:
        return 0, self.fields[6]

    def leader_epoch(self) -> int | None:
        return self.fields[7]  # type: ignore[no-any-return]


class SentAttempt(NamedTuple):
    """An attempt in the form that is sent to a process: its record, and the attributes that a `Context` exposes."""

    message: tuple[Any, ...]
    suffix: str
    level: int
    number: int
    failure: FailedAttempts | None
    arrived: float
    not_after: float


class Chunk(NamedTuple):
    """Jobs for a process. `round` counts how often the process had given back jobs before the chunk was sent."""

    round: int
    jobs: list[bytes]


class ProcessReport(NamedTuple):
    """A message from a process. `outcomes` has the pickled outcomes of finished jobs, in order, and their durations.

    At the end of a chunk, `seconds` is the average duration of a job of the chunk. If the process gives back jobs,
    `begun` is the number of jobs that it has begun since it started.
    """

    outcomes: list[tuple[bytes, float]]
    seconds: float | None
    begun: int | None


def attempts_of(job: Job) -> list[SentAttempt]:
    """Convert the attempts of a job to the form that is sent to a process."""
    return [_attempt(attempt.record, attempt) for attempt in job]


def pickled_job(job: Job) -> bytes:
    """Pickle the attempts of a job as a process gets them."""
    return pickle.dumps(attempts_of(job))


def pickled_with(carrier_of: Callable[[Job], Mapping[str, str]], job: Job) -> bytes:
    """Pickle the attempts of a job with the context of its span, which is current in the process while it runs."""
    return pickle.dumps((carrier_of(job), pickled_job(job)))


def _attempt(record: ConsumerRecord, attempt: RecordAttempt) -> SentAttempt:
    message = (
        record.kafka_topic,
        record.partition,
        record.offset,
        record.raw_key,
        record.raw_value,
        record.headers,
        record.timestamp,
        record.leader_epoch,
    )
    failure = attempt.failure
    if failure:
        error = portable(failure.error)
        # The first error need not be sent, because the handler's `Context` exposes only the last error.
        failure = failure._replace(error=error, first_error=error)
    suffix = record.kafka_topic[len(record.topic) :]
    return SentAttempt(message, suffix, attempt.level, attempt.number, failure, attempt.arrived, attempt.not_after)


def portable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled and unpickled. Otherwise, return a stand-in that describes the error."""
    try:
        if issubclass(type(error), RetryLater):
            error = _with_reason(error)
        if issubclass(type(error), BatchError):
            error = BatchError({index: portable(each) for index, each in error.failures.items()})  # type: ignore[attr-defined]
        if is_error(pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
            return error
    except BaseException:  # the error's class can be the user's code, which can raise anything
        return _stand_in(error)
    return _stand_in(error)


def _with_reason(error: BaseException) -> BaseException:
    """Return a `RetryLater` that keeps its cause in an attribute, because pickling an error drops its `__cause__`."""
    later, reason = RetryLater(attribute(error, "delay")), failure_behind(error)
    setattr(later, REASON, None if reason is error else portable(reason))
    return later


def _stand_in(error: BaseException) -> BaseException:
    """Return a picklable error that describes this error, and that the retries treat in the same way."""
    text, kind = described_error(error), type(error)
    if issubclass(kind, RetryLater):
        return RetryLater(_number(error, "delay"))  # type: ignore[arg-type]
    if issubclass(kind, RetriableError):
        return RetriableError(text, retry_after=_number(error, "retry_after"), untried=bool(_number(error, "untried")))
    return FatalError(text) if issubclass(kind, FatalError) else HandlerProcessError(text)


def _number(error: BaseException, name: str) -> float | None:
    """Return an attribute if it is an int, float or bool. Any other value might not be picklable."""
    value = attribute(error, name)
    return value if type(value) in (bool, int, float) else None


def described_error(error: BaseException) -> str:
    """Return the name of an error's class, followed by the error's text."""
    text, name = text_of(error), class_name(type(error))
    return f"{name}: {text}" if text else name


def loaded(outcome: bytes) -> HandlerOutcome:
    """Unpickle an outcome that a process sent. If that fails, the outcome is a `HandlerProcessError`."""
    try:
        error, result = pickle.loads(outcome)  # noqa: S301 - a process of the pool has written it
    except BaseException as unread:  # a user's class can raise anything when it is unpickled
        text = description_of(unread)
        return HandlerProcessError(
            f"The handler's result or error cannot be unpickled in the consumer's process: {text}"
        ), None
    if error is None or is_error(error):
        return error, result
    kind = class_name(type(error))
    return HandlerProcessError(
        f"The handler's error cannot be unpickled in the consumer's process: unpickling made an object of type {kind}."
    ), None


def pickled_start(*what: Any) -> bytes:
    """Pickle the arguments with which a process starts. Raises `ConfigError` if one of them cannot be pickled."""
    try:
        return pickle.dumps(what)
    except Exception as error:
        raise ConfigError(
            "With executor='process', the handler, the lifespan and the deserialisers must be importable functions: "
            f"{error}. Define them at the top level of a module."
        ) from error
