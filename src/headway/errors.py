"""Every error that Headway raises, and the exceptions that a handler raises to decide what happens to its record.

HeadwayError
├── ConfigError           a setting, an argument or an option is missing or not valid (also a ValueError)
├── LocalBrokerError      the local Apache Kafka cannot be installed, started or stopped
│   └── PortTakenError    another process is using the port of the local Apache Kafka
├── KafkaError            Kafka refused a call
│   ├── AuthenticationError   the brokers refused this client's connection or login
│   ├── FetchError        a level could not fetch; the other levels continue
│   │   └── FetchRefusedError     this client is not permitted to fetch; also an AuthorizationError
│   ├── OffsetError       a partition has no valid offset to start at, and auto.offset.reset is "error"
│   ├── DeliveryError     a record was not delivered
│   │   ├── BufferFullError       the send buffer was full, so the record was not sent
│   │   └── DeliveryRefusedError  this client is not permitted to write the record; also an AuthorizationError
│   └── AuthorizationError        this client lacks a permission, which the message names
├── TransactionError      a transaction failed, or its producer was fenced
│   └── FencedError       another producer has taken over its transactional id
├── SerializationError    a key or value could not be serialised, so the record was not sent
├── DeserializationError  a key or value could not be deserialised; the record still has the original bytes
├── UnreadableError       stored data of Headway is damaged, was written by another program, or has an invalid value
│   ├── ScheduleError     a delayed record has no valid due time or target topic; it becomes a dead letter
│   └── OffsetMapError    a commit's metadata is not a valid offset map; records done above the offset run again
├── IdPendingError        a schedule with this id is already pending, and the call asked not to replace it
├── NoRelayError          no relay answered a cancellation or a reschedule in time
├── HandlerError          a record failed permanently, and no dead-letter topic is configured
├── LifespanError         the resources that handlers share could not be started or shut down, or failed meanwhile
├── TimeLimitError        a handler exceeded its time limit
├── HandlerProcessError   a handler's process could not be started, or its result or error could not be unpickled
│   └── ProcessDiedError  a handler's process died; the attempts that it was running have failed
├── EarlierAttemptError   how an earlier attempt at the same record failed; the cause of a handler's error
├── ExpiredError          a record expired before it was started
├── BatchError            raised by a batch handler: some records of the batch failed
├── WakeupError           `wakeup()` interrupted a poll; nothing was lost
└── ClosedError           the client is closed

Handlers raise the following three exceptions, which are not subclasses of `HeadwayError`:

RetriableError            another attempt may succeed
RetryLater                try again after a delay; the record waits in Kafka rather than in this process's memory
FatalError                another attempt cannot succeed

Each error message names the setting or the topic, the value, the allowed range, and what to do. The command line
prints it unchanged.
"""

from collections.abc import Mapping

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BatchError",
    "BufferFullError",
    "CallFailedError",
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
    "TopicExistsError",
    "TransactionError",
    "UnreadableError",
    "WakeupError",
]


class HeadwayError(Exception):
    """The base class of all errors that Headway raises."""


class ConfigError(HeadwayError, ValueError):
    """A setting, an argument or an option is missing or not valid."""


class LocalBrokerError(HeadwayError):
    """The local Apache Kafka cannot be installed, started or stopped."""


class PortTakenError(LocalBrokerError):
    """Another process is already using the port that the local Apache Kafka should listen on."""


class KafkaError(HeadwayError):
    """Kafka refused a call."""


class AuthenticationError(KafkaError):
    """The brokers refused this client, because of its password, its certificate or the port that it connects to.

    Attributes: was_connected: True if this client was connected before, so its credentials have changed or expired
    since then. A new client may succeed, because it reads the certificate and key files again.
    """

    def __init__(self, message: str, *, was_connected: bool = False) -> None:
        super().__init__(message)
        self.was_connected = was_connected


class AuthorizationError(KafkaError):
    """Kafka's ACLs do not permit the operation. The message names the missing permission and how to grant it."""


class TopicExistsError(KafkaError):
    """A topic was not created, because Kafka already has a topic of that name."""


class FetchError(KafkaError):
    """A level could not fetch; the other levels continue.

    The poll during which the error occurs still returns the records that were fetched, and the next poll raises the
    error. So no record is lost. `level` is None if one group reads all levels and none of them could fetch.
    """

    def __init__(self, level: int | None, reason: str) -> None:
        super().__init__(f"{_consumer_for(level)} could not fetch records: {reason}")
        self.level = level


class FetchRefusedError(FetchError, AuthorizationError):
    """The client is not permitted to read a level's topics or to use its group.

    The level resumes automatically once the permission is granted.
    """

    def __init__(self, level: int | None, reason: str) -> None:
        super(FetchError, self).__init__(
            f"{_consumer_for(level)} cannot fetch records until a permission is granted. {reason}"
        )
        self.level = level


def _consumer_for(level: int | None) -> str:
    return f"The consumer for {'all levels' if level is None else f'level {level}'}"


class OffsetError(KafkaError):
    """A partition has no valid offset at which to start or continue, and `auto.offset.reset` is "error"."""


class DeliveryError(KafkaError):
    """A record was not delivered."""


class DeliveryRefusedError(DeliveryError, AuthorizationError):
    """A record was not delivered because the client is not permitted to write it."""


class BufferFullError(DeliveryError):
    """A record was not sent because the buffer space for its topic, level or partition was full."""


class TransactionError(HeadwayError):
    """A transaction failed, or its producer was fenced. Records whose offsets were not committed are read again."""


class FencedError(TransactionError):
    """Another producer has taken over the transactional id, so this producer can no longer commit anything."""


class SerializationError(HeadwayError):
    """A key or value could not be serialised, so the record was not sent."""


class DeserializationError(HeadwayError):
    """A key or value could not be deserialised. The record still has the original bytes."""


class UnreadableError(HeadwayError):
    """Data that Headway stores in Kafka is damaged, was written by another program, or has an invalid value.

    The unreadable record or commit metadata is skipped.
    """


class ScheduleError(UnreadableError):
    """A delayed record has no valid due time or target topic. The record becomes a dead letter."""


class IdPendingError(HeadwayError):
    """The schedule was not stored because another one with the same id is pending (`if_pending="refuse"`)."""


class NoRelayError(HeadwayError):
    """No relay answered a cancellation or a reschedule in time. The request takes effect once a relay runs."""


class OffsetMapError(UnreadableError):
    """A commit's metadata cannot be read as an offset map. The committed offset is used without the map."""


class HandlerError(HeadwayError):
    """A record failed permanently, and no dead-letter topic is configured. `__cause__` is the handler's error."""


class LifespanError(HeadwayError):
    """The lifespan could not start, ended too early, or could not be shut down."""


class TimeLimitError(HeadwayError):
    """A handler did not end within its time limit. This counts as a failed attempt like any other error."""


class EarlierAttemptError(HeadwayError):
    """The error of an earlier attempt, read from the header of a record that was stored again because of `RetryLater`.

    Attributes: exception: The name of the error's class. message: The error's text, possibly shortened.
    """

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(exception, message)
        self.exception = exception
        self.message = message

    def __str__(self) -> str:
        return f"{self.exception}: {self.message}" if self.message else self.exception


class CallFailedError(HeadwayError):
    """The record of a call failed for good, was dropped or expired, so the call has no result.

    Attributes:
        exception: The name of the exception's type, such as "TimeoutError".
        message: The exception's message.
    """

    def __init__(self, text: str, exception: str = "", message: str = "") -> None:
        super().__init__(text)
        self.exception = exception
        self.message = message


class ExpiredError(HeadwayError):
    """A record expired before it was started. Its dead letter carries this error."""


class RuleError(HeadwayError):
    """An operator's rule ended a record before it was started. Its dead letter carries this error."""


class EditedError(HeadwayError):
    """An operator dropped or moved a record while it waited."""


class HandlerProcessError(HeadwayError):
    """A handler's process could not be started, or its result or error could not be unpickled. The attempt failed."""


class ProcessDiedError(HandlerProcessError):
    """The process that was handling a record died.

    The attempts at all records that the process was handling have failed.

    Attributes: deaths: How many processes have died while handling this record, this one included. alone: True if no
    other record was running in the process, so this record must have caused the death.
    """

    def __init__(self, message: str, *, deaths: int = 1, alone: bool = True) -> None:
        super().__init__(message)
        self.deaths = deaths
        self.alone = alone


class BatchError(HeadwayError):
    """Raised by a batch handler when some records of the batch failed. The other records count as done.

    `failures` maps the index of each failed record in the batch to its error: an exception, an exception class that
    is instantiated as by a `raise` statement, or a text that becomes a `RuntimeError`.
    """

    def __init__(self, failures: Mapping[int, BaseException | type[BaseException] | str]) -> None:
        self.failures = {index: _as_exception(failure) for index, failure in failures.items()}
        try:
            which = repr(self.failures)
        except BaseException:  # a `__repr__` that the user defined can raise
            which = ", ".join(map(str, self.failures))
        super().__init__(f"{len(self.failures)} records of a batch failed: {which}")

    def __reduce__(self) -> tuple[type, tuple[dict[int, BaseException]]]:
        return BatchError, (dict(self.failures),)


def _as_exception(failure: object) -> BaseException:
    """Return the failure as an exception. A value that is neither an exception nor text becomes a `RuntimeError`."""
    kind = type(failure)
    if issubclass(kind, BaseException):
        return failure  # type: ignore[return-value]
    if issubclass(kind, str):
        return RuntimeError(failure)
    if issubclass(kind, type) and issubclass(failure, BaseException):  # type: ignore[arg-type]
        try:
            failure = failure()  # type: ignore[operator]
        except BaseException as error:  # the class cannot be instantiated, for example because __init__ needs arguments
            return error
        if issubclass(type(failure), BaseException):
            return failure  # type: ignore[return-value]
    return RuntimeError("The handler reported that this record failed, but gave no exception for it.")


class WakeupError(HeadwayError):
    """`wakeup()` interrupted a poll. Nothing was lost."""


class ClosedError(HeadwayError, RuntimeError):
    """The client is closed."""


class RetriableError(Exception):
    """Raised by a handler when another attempt may succeed.

    The record is retried even if the error's class is listed in `Retries.fatal`, up to `max_attempts`.

    Args:
        retry_after: The minimum number of seconds to wait, up to a day. With None the retry policy decides.
        untried: True if the attempt ended before the handler tried anything. Such an attempt does not count towards
            `max_attempts`.
    """

    # Both fields are also class attributes, because a subclass's `__init__` might not call `super().__init__`.
    retry_after: float | None = None
    untried: bool = False

    def __init__(self, *args: object, retry_after: float | None = None, untried: bool = False) -> None:
        super().__init__(*args)
        self.retry_after = retry_after
        self.untried = untried


class RetryLater(Exception):  # noqa: N818 - it is a request, not an error
    """Raised by a handler to try again after a delay, during which the record waits in Kafka, not in this process.

    The record is stored as a schedule (see `Scheduler`), and this process is done with it. After `delay`, a relay sends
    the record to its topic again, and earlier attempts still count towards `max_attempts`. In the meantime, later
    records with the same key are handled. After `max_attempts` the record becomes a dead letter. If `RetryLater` is
    raised from another error, or while another error is handled, that error is logged and stored with the record. If
    the scheduler refuses the delay or the record, the attempt has failed as with any other error.

    Args:
        delay: The delay in seconds; 0 or less means no delay.
    """

    delay = 0.0

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay


class FatalError(Exception):
    """Raised by a handler when another attempt cannot succeed."""
