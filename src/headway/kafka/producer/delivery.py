"""The outcome of sent records: the future of each record, and the counts for each level of a topic."""

import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import confluent_kafka as ck

from headway.core.levels.naming import how_to_create
from headway.core.user_errors import class_name
from headway.errors import DeliveryError, DeliveryRefusedError
from headway.records.record_types import UNKNOWN_OFFSET, Header, RecordMetadata
from headway.runtime.flag import WholeCondition

if TYPE_CHECKING:
    from headway.core.producer.queues import Queue, TopicQueues
    from headway.kafka.producer.client import ProducerClient
    from headway.kafka.producer.delivery_times import DeliveryTimes
    from headway.kafka.producer.sendable import Sendable

log = logging.getLogger(__name__)

P = ParamSpec("P")

OnDelivery = Callable[[Exception | None, RecordMetadata | None], object]

_REPEAT_AFTER = 10.0  # seconds between two log messages with the same text
_MAX_SENTENCES = 100  # at most this many messages are remembered, to limit the memory
_SOME_LEVELS = 3  # number of levels in the example of a command
# The last of these errors means that the topic's name is not valid.
_NO_SUCH_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION"}

_TIMED_OUT = {"_MSG_TIMED_OUT", "_TIMED_OUT"}

_MOST_ERRORS = 20  # the number of classes of errors that are counted separately
_OTHER_ERRORS = "other"

_making_watchers = threading.Lock()  # protects the creation of a future's `_Watchers`
_counting = threading.Lock()  # protects the counts of records


def _renew_locks() -> None:
    """Replace the locks in a forked process, where the thread that held them does not exist."""
    global _making_watchers, _counting
    _making_watchers, _counting = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Report(Protocol):
    """A delivered message, as the Kafka client reports it."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def latency(self) -> float | None: ...


ReportError = ck.KafkaError
"""The error in a delivery report."""


class Tally:
    """The counts of records that were sent to a destination.

    A tally counts the records that were sent during a certain period, and how many of these were delivered or have
    failed.
    """

    __slots__ = ("delivered", "destination", "failed", "sent")

    def __init__(self, destination: "Destination") -> None:
        self.destination = destination
        self.sent = self.delivered = self.failed = 0

    @property
    def under_way(self) -> int:
        """The number of records that have neither been delivered nor failed yet."""
        return self.sent - self.delivered - self.failed

    def count_failure(self, error: Exception) -> None:
        """Count a record that failed with this error. Thread-safe."""
        name, by_error = class_name(type(error)), self.destination.failed_by_error
        with _counting:
            self.failed += 1
            by_error[name if name in by_error or len(by_error) < _MOST_ERRORS else _OTHER_ERRORS] += 1

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally to this one."""
        self.sent += other.sent
        self.delivered += other.delivered
        self.failed += other.failed


class Destination:
    """One level of a topic as the target of records.

    `queues` has the waiting records. `counts` returns the counts of all records. If `is_raw` is True, the sender's
    thread serialises the records.

    A record is counted in the tally that is current when it is sent. `unfinished` starts a new tally, so that the
    returned tallies do not include records that are sent later.
    """

    def __init__(
        self,
        topic: str,
        level: int,
        kafka_topic: str,
        client: "ProducerClient",
        queues: "TopicQueues[Sendable] | None" = None,
        *,
        is_raw: bool = False,
    ) -> None:
        self.client = client
        self.is_raw = is_raw
        self.queues: TopicQueues[Sendable] = queues  # type: ignore[assignment]  # a destination of a sender always has queues
        self.topic = topic
        self.level = level
        self.kafka_topic = kafka_topic
        self.failed_by_error: Counter[str] = Counter()
        """The number of failed records by the class of their errors."""
        self.expired = 0
        """The number of failed records that were not delivered within their time limit."""
        self.times: DeliveryTimes | None = None
        """Measures delivery times, once the producer is measured."""
        self.tally = Tally(self)
        self._earlier: list[Tally] = []
        self._finished = Tally(self)  # the sum of the earlier tallies without unfinished records

    def unfinished(self) -> list[Tally]:
        """Return the tallies that include unfinished records.

        Records that are sent later are counted in another tally.
        """
        with _counting:
            if self.tally.under_way:
                self._earlier.append(self.tally)
                self.tally = Tally(self)
            under_way = list[Tally]()
            for each in self._earlier:
                if each.under_way > 0:
                    under_way.append(each)
                else:
                    self._finished.add(each)
            self._earlier = under_way
            return list(under_way)

    def counts(self) -> Tally:
        """Return the counts of all records that were sent to this destination."""
        counts = Tally(self)
        with _counting:
            for each in (self._finished, *self._earlier, self.tally):
                counts.add(each)
        return counts

    def count_expired(self) -> None:
        """Count a record that was not delivered within its time limit. `Tally.count_failure` counts it, too."""
        with _counting:
            self.expired += 1

    def count_unsent(self) -> Tally:
        """Count a record that will fail before it is sent, and return the tally in which it is counted."""
        with _counting:
            self.tally.sent += 1
            return self.tally


def without_offset(destination: Destination) -> DeliveryError | None:
    """Return the error for a report of success without an offset, or None if the client is not idempotent.

    Once a later record of a partition is stored, an idempotent producer of librdkafka 2.16 treats an earlier record as
    stored, even if no broker has acknowledged it. But Kafka may have refused the earlier record, because it checks a
    producer's sequence numbers only after the producer's first accepted record.
    """
    if not destination.client.is_idempotent:
        return None
    return DeliveryError(
        f"A record for {destination.topic} at level {destination.level} might not be stored: Kafka has acknowledged "
        "later records of its partition, but not this one. Check whether the topic has the record, or send it again."
    )


def not_delivered(destination: Destination, error: ReportError) -> DeliveryError:
    """Return the error for a record that was not delivered, given the error in its report.

    Counts the record as expired if it was not delivered within its time limit.
    """
    if error.name() in _TIMED_OUT:
        destination.count_expired()
    topic, level, client = destination.topic, destination.level, destination.client
    if permission := client.missing_permission(error, destination.kafka_topic):
        return DeliveryRefusedError(f"A record for {topic} at level {level} was not delivered. {permission.missing()}")
    if error.name() in _NO_SUCH_TOPIC or (error.name() in _TIMED_OUT and client.is_missing(destination.kafka_topic)):
        return topic_missing(destination)
    return DeliveryError(f"A record for {topic} at level {level} was not delivered: {client.reason_of(error)}.")


def topic_missing(destination: Destination) -> DeliveryError:
    """Return the error for a record whose topic does not exist."""
    topic, level, kafka_topic = destination.topic, destination.level, destination.kafka_topic
    return DeliveryError(
        f"A record for {topic} at level {level} was not delivered: Kafka has no topic {kafka_topic}. "
        f"{_remedy(destination)}"
    )


def _remedy(destination: Destination) -> str:
    """Return a sentence that says what to do if the topic does not exist."""
    topic, kafka_topic = destination.topic, destination.kafka_topic
    if alternative := destination.client.alternative_to(kafka_topic):
        return alternative
    how = how_to_create(topic, None if kafka_topic == topic else _SOME_LEVELS)
    return f"{how} Or correct the topic's name."


class _LoggedFailures:
    """Limits how often each failure is logged, so that a thousand equal failures do not fill the log."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def is_news(self, sentence: str, now: float) -> bool:
        with _counting:
            last = self._logged.pop(sentence, -math.inf)
            is_news = now - last >= _REPEAT_AFTER
            self._logged[sentence] = now if is_news else last
            while len(self._logged) > _MAX_SENTENCES:
                self._logged.pop(next(iter(self._logged)))
            return is_news


_failures = _LoggedFailures()


class _Watchers:
    """The objects that a standard future always creates: the condition, the list of waiters, and the callbacks."""

    def __init__(self) -> None:
        self.condition = WholeCondition()
        self.waiters: list[Any] = []
        self.done_callbacks: list[Callable[[Future[RecordMetadata]], object]] = []


class DeliveryFuture(Future[RecordMetadata]):
    """A `concurrent.futures.Future` that is cheap to create.

    The standard class creates a lock, a condition and two lists for each future, which takes as long as sending the
    record. This class creates the condition only when a thread first waits or a callback is first added, and creates
    the metadata only when they are requested. The future cannot be cancelled, because a sent record cannot be recalled.

    The sender also uses the future as the record itself, so a waiting record is a single object.
    """

    # Without slots, each future would consist of three objects at different places in memory.
    __slots__ = (
        "_exception",
        "_offset",
        "_on_delivery",
        "_partition",
        "_state",
        "_timestamp",
        "_watchers",
        "queue",
        "size",
        "tally",
    )

    tally: Tally
    # The accumulator's queue in which the record's size is counted, or None if the size is not counted.
    queue: "Queue[Sendable]"
    size: int  # how many bytes are counted for the record
    # The following fields are set only while the record waits; see `Sendable`.
    key: Any
    value: Any
    headers: list[Header] | None
    partition: int | None
    timestamp: int
    since: float
    _partition: int | None
    _offset: int | None
    _timestamp: int
    _state: str
    _exception: Exception | None
    _on_delivery: OnDelivery | None
    _watchers: _Watchers | None

    if not TYPE_CHECKING:
        # There is no `__init__`, because calling one would double the cost of creating the object. `of` sets the fields
        # instead.
        __init__ = object.__init__

    @staticmethod
    def of(destination: Destination, on_delivery: OnDelivery | None) -> "DeliveryFuture":
        """Create the future of a record for this destination."""
        future = DeliveryFuture()
        future.tally = destination.tally
        future.queue = None  # type: ignore[assignment]
        future._state = "PENDING"
        future._exception = None
        future._on_delivery = on_delivery
        future._watchers = None
        return future

    @property
    def destination(self) -> Destination:
        """The destination of the record."""
        return self.tally.destination

    # The fields of the standard Future. A `__getattr__` would be shorter, but would make the reads of all other fields
    # several times slower.
    _condition: Any = property(lambda self: self._watched().condition)
    _waiters: Any = property(lambda self: self._watched().waiters)
    _done_callbacks: Any = property(lambda self: self._watched().done_callbacks)

    def _watched(self) -> _Watchers:
        if self._watchers is None:
            with _making_watchers:
                if self._watchers is None:
                    self._watchers = _Watchers()
        return self._watchers

    # The methods of the standard Future that are not overridden here read these fields.
    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        if self._state != "FINISHED" or self._exception is not None:
            return None
        topic, level = self.destination.topic, self.destination.level
        offset = UNKNOWN_OFFSET if self._offset is None else self._offset
        return RecordMetadata(topic, self._partition, level, offset, self._timestamp)  # type: ignore[arg-type]  # a delivered record always has a partition

    def __call__(self, error: ReportError | None, message: Report) -> None:
        """Process the delivery report that librdkafka passes.

        The future itself is the callback, because a bound method would be one more object per record.
        """
        queue = self.queue
        if queue is not None:
            if not queue.returned:
                queue.reported.append(queue)
                # This is true once for each queue and round of reports, so a stream of records does not pay for it.
                if self.tally.destination.times is not None:
                    self.tally.destination.times.sample(self, message)
            queue.returned += self.size
        if error is not None:
            self.fail(not_delivered(self.destination, error))
            return
        offset = message.offset()
        if offset is None and (doubt := without_offset(self.destination)):
            self.fail(doubt)
            return
        self.tally.delivered += 1
        self._partition = message.partition()
        self._offset = offset
        self._timestamp = message.timestamp()[1]
        self._state = "FINISHED"
        if self._watchers is not None or self._on_delivery is not None:
            self._announce()

    def fail(self, error: Exception) -> None:
        """Finish the future with an error.

        If the future has no callback, the error is also logged, because the caller might never look at the future.
        Failures with the same text are logged once every ten seconds; the metrics count all of them.
        """
        self.tally.count_failure(error)
        self._exception = error
        self._state = "FINISHED"
        if self._on_delivery is None and _failures.is_news(str(error), time.monotonic()):
            log.error("%s", error)
        self._announce()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds for the delivery, and return the record's metadata.

        Raises the error that prevented the delivery, or `TimeoutError`.
        """
        left = timeout if self._state == "FINISHED" else self._wait(timeout)
        if self._state == "FINISHED" and self._exception is None:
            return self._result  # type: ignore[return-value]
        try:
            return super().result(left)
        except TimeoutError as error:
            raise self._late(error, timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait up to `timeout` seconds for the outcome, and return the error, or None if the record was delivered."""
        if self._state != "FINISHED":
            left = self._wait(timeout)
            if self._state != "FINISHED":
                try:
                    return super().exception(left)
                except TimeoutError as error:
                    raise self._late(error, timeout) from None
        return self._exception

    def _wait(self, timeout: float | None) -> float | None:
        """Take delivery reports on this thread until the outcome is known. Returns the time that is left.

        Taking the reports is faster than waiting until another thread takes them.
        """
        start = time.monotonic()
        self.destination.client.serve_until(self.done, timeout)
        return None if timeout is None else max(0.0, timeout - (time.monotonic() - start))

    def _late(self, error: TimeoutError, timeout: float | None) -> TimeoutError:
        """Turn the `TimeoutError` of a wait into a `TimeoutError` that names the record.

        Other errors are returned unchanged, because they are the outcome of the record itself.
        """
        if error is self._exception or timeout is None:
            return error
        to = self.destination
        late = f"A record for {to.topic} at level {to.level} was not delivered within {timeout:g} s"
        if to.client.is_missing(to.kafka_topic):
            why = f"because Kafka has no topic {to.kafka_topic}"
            later = "The record can still be delivered once the topic exists"
            return TimeoutError(f"{late}, {why}. {later}. {_remedy(to)}")
        return TimeoutError(f"{late}{to.client.because()}. The record may still be delivered.")

    def cancel(self) -> bool:
        """Return False, because a sent record cannot be recalled."""
        return False

    def _announce(self) -> None:
        # A thread that creates the condition after this point finds the state already set. If the condition exists
        # already, threads may be waiting for it.
        if self._watchers is not None:
            with self._watchers.condition:
                for waiter in self._watchers.waiters:
                    waiter.add_result(self) if self._exception is None else waiter.add_exception(self)
                self._watchers.condition.notify_all()
            self._invoke_callbacks()
        if self._on_delivery is not None:
            self._call_back("on_delivery callback", self._on_delivery, self._exception, self._result)

    def _invoke_callbacks(self) -> None:
        for each in self._done_callbacks:
            self._call_back("done callback", each, self)

    def _call_back(self, name: str, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        # This thread belongs to the producer, or is in a call that has nothing to do with this record. So the thread
        # must continue even after a SystemExit or CancelledError. A real Ctrl-C is deferred until the reports are
        # taken.
        try:
            callback(*args, **kwargs)
        except BaseException:
            log.exception("The %s of a record for %s raised an error.", name, self.destination.topic)
