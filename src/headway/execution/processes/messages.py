"""The messages in the pipes of the pool; nothing else is unpickled."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from headway.core.engine.work import FailedAttempts
from headway.core.retry import REASON, failure_behind
from headway.core.user_errors import attribute, class_name, description_of, is_error, text_of
from headway.errors import BatchError, ConfigError, FatalError, HandlerProcessError, RetriableError, RetryLater
from headway.execution.jobs import Job, RecordWork
from headway.records.record_types import ConsumerRecord, Header

HandlerOutcome = tuple[BaseException | None, Any]

NOTHING: Final = -1
"""The index of the running job while there is none."""


class Deserializers(NamedTuple):
    """The functions with which a process reads keys and values. They must be importable, because pickle sends names."""

    key: Callable[..., Any] | None
    value: Callable[..., Any] | None


class SentMessage(NamedTuple):
    """A message without its client; see `headway.records.record_types.Message`."""

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
    """The fields of a work that a `Context` shows."""

    message: tuple[Any, ...]
    suffix: str
    level: int
    attempt: int
    failure: FailedAttempts | None
    arrived: float
    not_after: float


class Chunk(NamedTuple):
    """Jobs for a process. `round` is how many times the sender has seen it give back jobs."""

    round: int
    jobs: list[bytes]


class ProcessReport(NamedTuple):
    """The outcomes of the next jobs, in order, with the seconds that each job took.

    At the end of a chunk, `seconds` is the average time of its jobs. If the process gives jobs back, `begun` is the
    number of jobs that it has begun since its start.
    """

    outcomes: list[tuple[bytes, float]]
    seconds: float | None
    begun: int | None


def attempts_of(job: Job) -> list[SentAttempt]:
    """Return the attempts of a job in the form in which they are sent to a process."""
    return [_attempt(work.record, work) for work in job]


def _attempt(record: ConsumerRecord, work: RecordWork) -> SentAttempt:
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
    failure = work.failure
    if failure:
        error = portable(failure.error)
        failure = failure._replace(error=error, first_error=error)  # a context shows only the last error
    suffix = record.kafka_topic[len(record.topic) :]
    return SentAttempt(message, suffix, work.level, work.attempt, failure, work.arrived, work.not_after)


def portable(error: BaseException) -> BaseException:
    """Return the error, or one that describes it if it cannot be pickled and unpickled."""
    try:
        if issubclass(type(error), RetryLater):
            error = _with_reason(error)
        if issubclass(type(error), BatchError):
            error = BatchError({index: portable(each) for index, each in error.failures.items()})  # type: ignore[attr-defined]
        if is_error(pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
            return error
    except BaseException:  # a user's own code
        return _stand_in(error)
    return _stand_in(error)


def _with_reason(error: BaseException) -> BaseException:
    """Return a `RetryLater` with the error behind it in an attribute, because a pickled error loses its cause."""
    later, reason = RetryLater(attribute(error, "delay")), failure_behind(error)
    setattr(later, REASON, None if reason is error else portable(reason))
    return later


def _stand_in(error: BaseException) -> BaseException:
    """Return an error that leads the retries to the same decision."""
    text, kind = described_error(error), type(error)
    if issubclass(kind, RetryLater):
        return RetryLater(_number(error, "delay"))  # type: ignore[arg-type]
    if issubclass(kind, RetriableError):
        return RetriableError(text, retry_after=_number(error, "retry_after"), untried=bool(_number(error, "untried")))
    return FatalError(text) if issubclass(kind, FatalError) else HandlerProcessError(text)


def _number(error: BaseException, name: str) -> float | None:
    """Return an attribute if it is a plain number or bool. Any other value might not be picklable."""
    value = attribute(error, name)
    return value if type(value) in (bool, int, float) else None


def described_error(error: BaseException) -> str:
    """Return an error's name and text."""
    text, name = text_of(error), class_name(type(error))
    return f"{name}: {text}" if text else name


def loaded(outcome: bytes) -> HandlerOutcome:
    """Return an outcome that a process sent, or a `HandlerProcessError` if it cannot be unpickled here."""
    try:
        error, result = pickle.loads(outcome)  # noqa: S301 - from a process of the pool
    except BaseException as unread:  # of a user's class
        text = description_of(unread)
        return HandlerProcessError(f"What the handler returned or raised cannot be read here: {text}"), None
    if error is None or is_error(error):
        return error, result
    kind = class_name(type(error))
    return HandlerProcessError(f"What the handler raised cannot be read here: it came as {kind}."), None


def pickled_start(*what: Any) -> bytes:
    """Pickle the start arguments of a process. Raises `ConfigError` if a function among them is not importable."""
    try:
        return pickle.dumps(what)
    except Exception as error:
        raise ConfigError(
            f"With executor='process' handler, lifespan and deserialisers must be importable functions: {error}. "
            "Define them at the top of a module."
        ) from error
