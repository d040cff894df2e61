"""Every error that Headway raises, and the errors that a handler raises to say what becomes of its record.

HeadwayError
├── ConfigError           a setting, an argument or an option is missing or out of bounds (also a ValueError)
├── LocalBrokerError      the local Apache Kafka cannot be installed, started or stopped
│   └── PortTakenError    another process has the port that it should listen on
├── KafkaError            Kafka refused a call
│   ├── AuthenticationError   the brokers do not let this client in
│   ├── FetchError        a level could not fetch; the other levels go on
│   │   └── FetchRefusedError     its principal lacks the right; also an AuthorizationError
│   ├── OffsetError       a partition has no valid offset to start at, and auto.offset.reset is "error"
│   ├── DeliveryError     a record was not delivered
│   │   ├── BufferFullError       the send buffer was full; the record was not sent
│   │   └── DeliveryRefusedError  the principal lacks the right; also an AuthorizationError
│   └── AuthorizationError        the client's principal lacks a right, which the message names
├── TransactionError      a transactional producer was fenced off, or cannot go on
│   └── FencedError       another producer has taken over its transactional id
├── SerializationError    a key or value could not be turned into bytes; the record was not sent
├── DeserializationError  a key or value could not be read; the record keeps its bytes
├── UnreadableError       a record in one of Headway's own topics is damaged, foreign or out of bounds; it is skipped
│   ├── ScheduleError     a delayed record does not say where and when it is due; it becomes a dead letter
│   └── OffsetMapError    commit metadata is not an offset map; records done above the offset are replayed
├── IdPendingError        a schedule with this id is pending and was not to be replaced
├── NoRelayError          no relay has settled a cancellation or a reschedule in time
├── HandlerError          a record failed for good, and there is no dead-letter topic to keep it
├── LifespanError         the resources that handlers share could not be started or shut down
├── TimeLimitError        a handler exceeded its time limit
├── HandlerProcessError   a handler's process could not be started, or its error cannot be read here
│   └── ProcessDiedError  a handler's process died; the records that it was handling have failed
├── EarlierAttemptError   the cause of a handler's error: how an earlier attempt of its record failed
├── ExpiredError          a record expired before it was started
├── BatchError            raised by a batch handler: some records of the batch failed
├── WakeupError           `wakeup()` interrupted a poll; nothing was lost
└── ClosedError           the client is closed

A handler raises these three, which are not subclasses of `HeadwayError`:

RetriableError            another attempt may succeed
RetryLater                try again after a delay, stored in Kafka rather than in this process's memory
FatalError                another attempt cannot succeed

A message is a sentence that names the setting or the topic, the value, the bound, and what to do. The command
line prints it unchanged.
"""

from collections.abc import Mapping

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BatchError",
    "BufferFullError",
    "ClosedError",
    "ConfigError",
    "DeliveryError",
    "DeliveryRefusedError",
    "DeserializationError",
    "EarlierAttemptError",
    "ExpiredError",
    "FatalError",
    "FencedError",
    "FetchError",
    "FetchRefusedError",
    "HandlerError",
    "HandlerProcessError",
    "HeadwayError",
    "IdPendingError",
    "KafkaError",
    "LifespanError",
    "LocalBrokerError",
    "NoRelayError",
    "OffsetError",
    "OffsetMapError",
    "PortTakenError",
    "ProcessDiedError",
    "RetriableError",
    "RetryLater",
    "ScheduleError",
    "SerializationError",
    "TimeLimitError",
    "TransactionError",
    "UnreadableError",
    "WakeupError",
]


class HeadwayError(Exception):
    """The base class of all errors that Headway raises."""


class ConfigError(HeadwayError, ValueError):
    """A setting, an argument or an option is missing or out of bounds."""


class LocalBrokerError(HeadwayError):
    """The local Apache Kafka cannot be installed, started or stopped."""


class PortTakenError(LocalBrokerError):
    """A port conflict: another process has the port that the local Apache Kafka should listen on."""


class KafkaError(HeadwayError):
    """Kafka refused a call."""


class AuthenticationError(KafkaError):
    """The brokers do not let this client in, because of its password, its certificate or the port it connects to.

    Attributes: was_connected: True if they let it in before. Its credentials were then changed or have expired. A new
    client may succeed, because it reads the certificate and key files again.
    """

    def __init__(self, message: str, *, was_connected: bool = False) -> None:
        super().__init__(message)
        self.was_connected = was_connected


class AuthorizationError(KafkaError):
    """The client's principal lacks a right. The message names the right, the resource, and how to grant it."""


class FetchError(KafkaError):
    """A level could not fetch; the other levels go on.

    Raised by the poll after the one that met the error, so that no fetched record is lost. `level` is None if one
    group reads all levels and none of them could fetch.
    """

    def __init__(self, level: int | None, reason: str) -> None:
        super().__init__(f"{'All levels' if level is None else f'Level {level}'} could not fetch: {reason}")
        self.level = level


class FetchRefusedError(FetchError, AuthorizationError):
    """A level lacks the right to read its topics or use its group. It resumes by itself once the right is granted."""

    def __init__(self, level: int | None, reason: str) -> None:
        who = "One group of all levels" if level is None else f"Level {level}"
        super(FetchError, self).__init__(f"{who} is waiting for a right. {reason}")
        self.level = level


class OffsetError(KafkaError):
    """A partition has no valid offset to start or continue at, and `auto.offset.reset` is "error"."""


class DeliveryError(KafkaError):
    """A record was not delivered."""


class DeliveryRefusedError(DeliveryError, AuthorizationError):
    """A record was not delivered because the principal lacks a right."""


class BufferFullError(DeliveryError):
    """A record was not sent because the buffer space for its topic, level or partition was full."""


class TransactionError(HeadwayError):
    """A transactional producer was fenced off, or cannot go on. Records that were not committed are read again."""


class FencedError(TransactionError):
    """Another producer has taken over the transactional id. Only its records are committed from now on."""


class SerializationError(HeadwayError):
    """A key or value could not be turned into bytes; the record was not sent."""


class DeserializationError(HeadwayError):
    """A key or value could not be read; the record keeps its bytes."""


class UnreadableError(HeadwayError):
    """A record in one of Headway's own topics is damaged, foreign or out of bounds. It is skipped."""


class ScheduleError(UnreadableError):
    """A delayed record does not say where and when it is due. It becomes a dead letter."""


class IdPendingError(HeadwayError):
    """The schedule was not stored because another one with the same id is pending (`if_pending="refuse"`)."""


class NoRelayError(HeadwayError):
    """No relay has settled a cancellation or a reschedule in time. It is settled as soon as one runs."""


class OffsetMapError(UnreadableError):
    """Commit metadata cannot be read as an offset map. The offset stands; the map is ignored."""


class HandlerError(HeadwayError):
    """A record failed for good, and there is no dead-letter topic to keep it. Its own error is the `__cause__`."""


class LifespanError(HeadwayError):
    """The lifespan could not start, ended too early, or could not be shut down."""


class TimeLimitError(HeadwayError):
    """A handler did not end within its time limit. This counts as a failed attempt like any other."""


class EarlierAttemptError(HeadwayError):
    """How an earlier attempt failed, as the record's header reports it after the record was sent on (`RetryLater`).

    Attributes: exception: The name of the error's class. message: The error's text, possibly shortened.
    """

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(exception, message)
        self.exception = exception
        self.message = message

    def __str__(self) -> str:
        return f"{self.exception}: {self.message}" if self.message else self.exception


class ExpiredError(HeadwayError):
    """A record expired before it was started. Its dead letter carries this error."""


class HandlerProcessError(HeadwayError):
    """A handler's process died, or raised an error that no other process can read. The attempt has failed."""


class ProcessDiedError(HandlerProcessError):
    """The process that handled a record died. Each record that ran in it has a failed attempt.

    Attributes: deaths: How many processes have died while handling this record, this one included. alone: True if no
    other record ran in the process, so that this record must have caused its death.
    """

    def __init__(self, message: str, *, deaths: int = 1, alone: bool = True) -> None:
        super().__init__(message)
        self.deaths = deaths
        self.alone = alone


class BatchError(HeadwayError):
    """Raised by a batch handler when some records of the batch failed, named by their index in it.

    The other records are done. An exception class stands for an instance of it, as in a `raise` statement. Text
    becomes a `RuntimeError` with that text.
    """

    def __init__(self, failures: Mapping[int, BaseException | type[BaseException] | str]) -> None:
        self.failures = {index: _as_exception(failure) for index, failure in failures.items()}
        try:
            which = repr(self.failures)
        except BaseException:  # a user's own class may fail in its __repr__
            which = ", ".join(map(str, self.failures))
        super().__init__(f"{len(self.failures)} records of a batch failed: {which}")

    def __reduce__(self) -> tuple[type, tuple[dict[int, BaseException]]]:
        return BatchError, (dict(self.failures),)


def _as_exception(failure: object) -> BaseException:
    """Return the failure as an exception. Anything but an exception or text only means that the record failed."""
    kind = type(failure)
    if issubclass(kind, BaseException):
        return failure  # type: ignore[return-value]
    if issubclass(kind, str):
        return RuntimeError(failure)
    if issubclass(kind, type) and issubclass(failure, BaseException):  # type: ignore[arg-type]
        try:
            failure = failure()  # type: ignore[operator]
        except BaseException as error:  # for instance because its __init__ needs arguments
            return error
        if issubclass(type(failure), BaseException):
            return failure  # type: ignore[return-value]
    return RuntimeError("The handler reported that this record failed, but gave no exception for it.")


class WakeupError(HeadwayError):
    """`wakeup()` interrupted a poll. Nothing was lost."""


class ClosedError(HeadwayError, RuntimeError):
    """The client is closed."""


class RetriableError(Exception):
    """Raised by a handler when another attempt may succeed, whatever else is configured.

    Args:
        retry_after: The minimum number of seconds to wait, up to a day. None leaves it to the retry policy.
        untried: True if the attempt ended before anything was tried. It then does not count towards `max_attempts`,
            although other attempts do.
    """

    retry_after: float | None = None  # class attributes too: a subclass's __init__ might not call ours
    untried: bool = False

    def __init__(self, *args: object, retry_after: float | None = None, untried: bool = False) -> None:
        super().__init__(*args)
        self.retry_after = retry_after
        self.untried = untried


class RetryLater(Exception):  # noqa: N818 - it is a request, not an error
    """Raised by a handler to try again after a delay that is kept in Kafka, not in this process's memory.

    The record is stored as a schedule (see `Scheduler`), and this process is done with it. After `delay` a relay sends
    it to its topic again, where its attempts are counted on. Later records of its key go ahead in the meantime. After
    `max_attempts` it becomes a dead letter. If `RetryLater` is raised from another error, or while one is handled, that
    error is logged and kept with the record. If the scheduler refuses the delay or the record, the attempt has failed
    as with any other error.

    Args:
        delay: The delay in seconds; 0 or less means no delay.
    """

    delay = 0.0

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay


class FatalError(Exception):
    """Raised by a handler when another attempt cannot succeed."""
