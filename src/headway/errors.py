"""Everything that Headway raises, in one place, and what handlers raise for it.

HeadwayError
├── ConfigError           a setting, an argument or an option is missing or out of bounds (also a ValueError)
├── LocalBrokerError      the local Apache Kafka cannot be installed, started or stopped
│   └── PortTakenError    another process has the port that it is to listen on
├── KafkaError            Kafka refused a call
│   ├── AuthenticationError   the brokers do not let this client in
│   ├── FetchError        a level could not fetch; the other levels go on
│   │   └── FetchRefusedError     its principal has no right to; also an AuthorizationError
│   ├── OffsetError       a partition has no valid offset to begin at, and auto.offset.reset is "error"
│   ├── DeliveryError     a record was not delivered
│   │   ├── NoRoomError   there was no room for it; it was not sent
│   │   └── DeliveryRefusedError  its principal has no right to; also an AuthorizationError
│   └── AuthorizationError        the client's principal lacks a right, which the message names
├── TransactionError      a transactional producer was fenced off, or cannot go on
│   └── FencedError       another one has taken over its transactional id
├── SerializationError    a key or value could not be turned into bytes; the record was not sent
├── DeserializationError  a key or value could not be read; the record keeps its bytes
├── UnreadableError       what lies in a topic of Headway's own is damaged, foreign or out of bounds; it is passed over
│   ├── ScheduleError     a delayed record does not say where and when it is due; it goes to the dead letters
│   └── OffsetMapError    commit metadata is not an offset map; the offset stands, what was done above it is replayed
├── IdPendingError        a schedule with this id is pending, and was not to be replaced
├── NoRelayError          no relay has settled a cancellation or a reschedule in time
├── HandlerError          a record failed for good, and there is no dead-letter topic to keep it
├── LifespanError         what handlers share could not be started, or not be shut down
├── TimeLimitError        a handler did not end within its time limit
├── HandlerProcessError   a handler's process could not be started, or what it raised cannot be read here
│   └── ProcessDiedError  a handler's process died; the records that it was at have failed
├── EarlierAttemptError   the cause of a handler's error: how its record failed before
├── ExpiredError          a record could not be started before it expired
├── BatchError            raised by a batch's handler: some of its records failed
├── WakeupError           `wakeup()` interrupted a poll; nothing was lost
└── ClosedError           the client is closed

A handler raises these three, which are no `HeadwayError`:

RetriableError            trying again can help
RetryLater                try again after a delay, out of this process's memory
FatalError                trying again cannot help

A message is a sentence that names the setting or the topic, the value, the bound, and what to do. The command
line prints it as it is.
"""

from collections.abc import Mapping

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BatchError",
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
    "NoRoomError",
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
    """The base of all of Headway's errors."""


class ConfigError(HeadwayError, ValueError):
    """A setting, an argument or an option is missing or out of bounds."""


class LocalBrokerError(HeadwayError):
    """The local Apache Kafka cannot be installed, started or stopped."""


class PortTakenError(LocalBrokerError):
    """A port conflict: another process has the port that the local Apache Kafka is to listen on."""


class KafkaError(HeadwayError):
    """The error of a call that Kafka refused."""


class AuthenticationError(KafkaError):
    """The brokers do not let this client in: for its password, a certificate, or the port that it connects to.

    Attributes: was_connected: True if they let it in before. Then credentials were changed or have ended, and a new
    client may be let in, as it reads the files of certificates and keys anew.
    """

    def __init__(self, message: str, *, was_connected: bool = False) -> None:
        super().__init__(message)
        self.was_connected = was_connected


class AuthorizationError(KafkaError):
    """The client's principal lacks a right. The message names the right, the resource, and how to grant it."""


class FetchError(KafkaError):
    """A level could not fetch; the other levels go on.

    Raised by the poll after the one that met the error, so that no fetched record is lost to it. `level` is None if
    one group reads all levels, and none of them could fetch.
    """

    def __init__(self, level: int | None, reason: str) -> None:
        super().__init__(f"{'All levels' if level is None else f'Level {level}'} could not fetch: {reason}")
        self.level = level


class FetchRefusedError(FetchError, AuthorizationError):
    """A level may not read its topics or use its group; it goes on by itself when the right is granted."""

    def __init__(self, level: int | None, reason: str) -> None:
        who = "One group of all levels" if level is None else f"Level {level}"
        super(FetchError, self).__init__(f"{who} waits for a right. {reason}")
        self.level = level


class OffsetError(KafkaError):
    """A partition has no valid offset to begin or to go on at, and `auto.offset.reset` is "error"."""


class DeliveryError(KafkaError):
    """A record was not delivered."""


class DeliveryRefusedError(DeliveryError, AuthorizationError):
    """A record was not delivered, for want of a right."""


class NoRoomError(DeliveryError):
    """A record found no room in the memory that its topic, level or partition may use; it was not sent."""


class TransactionError(HeadwayError):
    """A transactional producer was fenced off, or cannot go on; uncommitted records come again."""


class FencedError(TransactionError):
    """A takeover of the transactional id by another producer: only the other's records count now."""


class SerializationError(HeadwayError):
    """A key or value could not be turned into bytes; the record was not sent."""


class DeserializationError(HeadwayError):
    """A key or value could not be read; the record keeps its bytes."""


class UnreadableError(HeadwayError):
    """A record in a topic of Headway's own is damaged, foreign or out of bounds; it is passed over."""


class ScheduleError(UnreadableError):
    """A delayed record does not say where and when it is due; it goes to the dead letters."""


class IdPendingError(HeadwayError):
    """A schedule that was not stored, since another one with the same id is pending (`if_pending="refuse"`)."""


class NoRelayError(HeadwayError):
    """A cancellation or a reschedule that no relay has settled in time; it is settled as soon as one runs."""


class OffsetMapError(UnreadableError):
    """Commit metadata that cannot be read as an offset map; the offset stands, the map is dropped."""


class HandlerError(HeadwayError):
    """A record failed for good, and there is no dead-letter topic to keep it; its error is the cause."""


class LifespanError(HeadwayError):
    """A failure of the lifespan: it could not start, ended too early, or could not be shut down."""


class TimeLimitError(HeadwayError):
    """A handler did not end within its time limit; a failed attempt as any other."""


class EarlierAttemptError(HeadwayError):
    """The error of an attempt before the record was sent on, as `RetryLater` does; the record's header tells of it.

    Attributes: exception: The name of the error's class. message: The error's text, or the beginning of it.
    """

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(exception, message)
        self.exception = exception
        self.message = message

    def __str__(self) -> str:
        return f"{self.exception}: {self.message}" if self.message else self.exception


class ExpiredError(HeadwayError):
    """A record expired before it could be started: the error of its dead letter."""


class HandlerProcessError(HeadwayError):
    """A handler's process died, or raised an error that no other process can read; a failed attempt as any other."""


class ProcessDiedError(HandlerProcessError):
    """The process of a record's handler died: a failed attempt of each record that ran in it.

    Attributes: deaths: The number of processes that have died of this record, this one included. alone: True if no
    other record ran in the process, so that this record has caused its death.
    """

    def __init__(self, message: str, *, deaths: int = 1, alone: bool = True) -> None:
        super().__init__(message)
        self.deaths = deaths
        self.alone = alone


class BatchError(HeadwayError):
    """A failure of some records of a batch, named by their index in it; a batch's handler raises it.

    The other records are done. An exception's class stands for an instance of it, as after `raise`. Text becomes a
    `RuntimeError` with that text.
    """

    def __init__(self, failures: Mapping[int, BaseException | type[BaseException] | str]) -> None:
        self.failures = {index: _as_exception(failure) for index, failure in failures.items()}
        try:
            which = repr(self.failures)
        except BaseException:  # of a user's own class
            which = ", ".join(map(str, self.failures))
        super().__init__(f"{len(self.failures)} records of a batch failed: {which}")

    def __reduce__(self) -> tuple[type, tuple[dict[int, BaseException]]]:
        return BatchError, (dict(self.failures),)


def _as_exception(failure: object) -> BaseException:
    """Return a failure as an exception; any other object only tells that its record failed."""
    kind = type(failure)
    if issubclass(kind, BaseException):
        return failure  # type: ignore[return-value]
    if issubclass(kind, str):
        return RuntimeError(failure)
    if issubclass(kind, type) and issubclass(failure, BaseException):  # type: ignore[arg-type]
        try:
            failure = failure()  # type: ignore[operator]
        except BaseException as error:  # it asks for arguments, for instance
            return error
        if issubclass(type(failure), BaseException):
            return failure  # type: ignore[return-value]
    return RuntimeError("The handler said that this record failed, and gave no exception for it.")


class WakeupError(HeadwayError):
    """The interruption of a poll by `wakeup()`; nothing was lost."""


class ClosedError(HeadwayError, RuntimeError):
    """The client is closed."""


class RetriableError(Exception):
    """A handler's error that trying again can help with, whatever else is configured.

    Args:
        retry_after: The least seconds to wait, up to a day; None leaves it to the retries.
        untried: True if the attempt ended before anything was tried. Then it does not count towards `max_attempts`,
            however other attempts end.
    """

    retry_after: float | None = None  # here too: a subclass may have an __init__ of its own
    untried: bool = False

    def __init__(self, *args: object, retry_after: float | None = None, untried: bool = False) -> None:
        super().__init__(*args)
        self.retry_after = retry_after
        self.untried = untried


class RetryLater(Exception):  # noqa: N818 - it is a request, not an error
    """A handler's request to try again after a delay, out of this process's memory.

    The record is stored as a schedule (see `Scheduler`), and this process is done with it. A relay sends it to its
    topic again when `delay` has passed, and there its attempts are counted on. Meanwhile later records of its key go
    on. After `max_attempts` it is a dead letter. If it is raised from another error, or while one is handled, that
    error is told. If the scheduler refuses the delay or the record, the attempt has failed as with any other error.

    Args:
        delay: The delay in seconds; below 0 there is none.
    """

    delay = 0.0

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay


class FatalError(Exception):
    """A handler's error that trying again cannot help with."""
