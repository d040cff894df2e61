"""The future of a record that was sent."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import confluent_kafka as ck

from headway.core.levels.naming import how_to_create
from headway.core.rights import Right, right_for
from headway.errors import DeliveryError, DeliveryRefusedError
from headway.records.record_types import UNKNOWN_OFFSET, Header, RecordMetadata
from headway.runtime.flag import WholeCondition

if TYPE_CHECKING:
    from headway.core.producer.queues import Queue, TopicQueues
    from headway.kafka.producer.sendable import Sendable

log = logging.getLogger(__name__)

P = ParamSpec("P")

OnDelivery = Callable[[Exception | None, RecordMetadata | None], object]

_AGAIN_AFTER = 10.0
_MOST_SENTENCES = 100
_SOME_LEVELS = 3  # for an example
_NO_SUCH_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION"}  # the last: its name is none

_TIMED_OUT = {"_MSG_TIMED_OUT", "_TIMED_OUT"}

_making_watchers = threading.Lock()
_counting = threading.Lock()


def _renew_locks() -> None:
    """Make the locks anew in a forked process: the thread that held one does not exist there."""
    global _making_watchers, _counting
    _making_watchers, _counting = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Report(Protocol):
    """A delivered message, as the Kafka client reports it."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...


ReportError = ck.KafkaError
"""The error of a report, as the Kafka client makes it."""

ServeUntil = Callable[[Callable[[], bool], float | None], None]
"""A function that takes reports on this thread until `done()`, for at most so many seconds."""


class Explains(Protocol):
    """A client that knows why it is not connected, what it may not do, and which topics there are not."""

    is_idempotent: bool

    def because(self) -> str:
        """Return why, as the end of a sentence; empty if that is not known."""

    def is_missing(self, topic: str) -> bool:
        """Return whether Kafka had no such topic when it was asked last."""

    def instead_of(self, topic: str) -> str:
        """Return a sentence about what Kafka has in place of a missing topic; empty if nothing was found."""

    def missing_right(self, error: ReportError, topic: str) -> Right | None:
        """Return the right for want of which a record was not delivered; None if that is not why."""

    def reason_of(self, error: ReportError) -> str:
        """Return the text of a report's error, with its cause if that is known."""


class Tally:
    """The counts of records sent to a destination in some span of time, and of those delivered or failed."""

    __slots__ = ("delivered", "destination", "failed", "sent")

    def __init__(self, destination: "Destination") -> None:
        self.destination = destination
        self.sent = self.delivered = self.failed = 0

    @property
    def under_way(self) -> int:
        """The number of records that were neither delivered nor failed."""
        return self.sent - self.delivered - self.failed

    def count_failure(self) -> None:
        """Count a failed record, on any thread."""
        with _counting:
            self.failed += 1

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.sent += other.sent
        self.delivered += other.delivered
        self.failed += other.failed


class Destination:
    """One level of a topic, and the counts of its records; `queues` holds the waiting records, if any can wait.

    If it `is_raw`, the sender's thread serialises its records.

    A record counts in the tally that the destination has when it is sent. `unsettled` begins a new tally. A wait for
    the records sent before therefore does not include records sent meanwhile.
    """

    __slots__ = (
        "_earlier",
        "_settled",
        "client",
        "is_raw",
        "kafka_topic",
        "level",
        "queues",
        "serve_until",
        "tally",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        level: int,
        kafka_topic: str,
        serve_until: ServeUntil,
        queues: "TopicQueues[Sendable] | None" = None,
        client: Explains | None = None,
        *,
        is_raw: bool = False,
    ) -> None:
        self.serve_until = serve_until
        self.client = client
        self.is_raw = is_raw
        self.queues: TopicQueues[Sendable] = queues  # type: ignore[assignment]  # a sender's destination has them
        self.topic = topic
        self.level = level
        self.kafka_topic = kafka_topic
        self.tally = Tally(self)
        self._earlier: list[Tally] = []
        self._settled = Tally(self)  # the sum of the tallies with nothing under way, which get no more

    def unsettled(self) -> list[Tally]:
        """Return the tallies of records under way; records sent from now on are in none of them."""
        with _counting:
            if self.tally.under_way:
                self._earlier.append(self.tally)
                self.tally = Tally(self)
            under_way = list[Tally]()
            for each in self._earlier:
                if each.under_way > 0:
                    under_way.append(each)
                else:
                    self._settled.add(each)
            self._earlier = under_way
            return list(under_way)

    def counts(self) -> Tally:
        """Return the counts of all records sent."""
        counts = Tally(self)
        with _counting:
            for each in (self._settled, *self._earlier, self.tally):
                counts.add(each)
        return counts

    def count_unsent(self) -> Tally:
        """Count a record as sent that will fail without being sent; return its tally."""
        with _counting:
            self.tally.sent += 1
            return self.tally


def without_place(destination: Destination) -> DeliveryError | None:
    """Return the error for a report that a record is stored, and not where; None if none says where.

    An idempotent producer of librdkafka 2.16 takes a record for stored, about which it has no answer, once a later one
    of its partition is. Kafka may have refused it: it checks a producer's sequence only behind its first record.
    """
    if destination.client is None or not destination.client.is_idempotent:
        return None
    return DeliveryError(
        f"A record for {destination.topic} at level {destination.level} might not be stored: Kafka has not "
        "acknowledged it, but later ones of its partition. Look whether it is there, or send it again."
    )


def not_delivered(destination: Destination, error: ReportError) -> DeliveryError:
    """Return the error for a report of a record that was not delivered."""
    topic, level = destination.topic, destination.level
    client, kafka_topic = destination.client, destination.kafka_topic
    right = client.missing_right(error, kafka_topic) if client else right_for(error.name(), "Write", topic=kafka_topic)
    if right:
        return DeliveryRefusedError(f"A record for {topic} at level {level} was not delivered. {right.missing()}")
    if error.name() in _NO_SUCH_TOPIC or (error.name() in _TIMED_OUT and is_missing(destination)):
        return of_missing_topic(destination)
    reason = client.reason_of(error) if client else error.str()
    return DeliveryError(f"A record for {topic} at level {level} was not delivered: {reason}.")


def is_missing(destination: Destination) -> bool:
    """Return whether Kafka had no such topic when it was asked last: that is why a record's time ran out."""
    return destination.client is not None and destination.client.is_missing(destination.kafka_topic)


def of_missing_topic(destination: Destination) -> DeliveryError:
    """Return the error for a record whose topic does not exist."""
    topic, level, kafka_topic = destination.topic, destination.level, destination.kafka_topic
    return DeliveryError(
        f"A record for {topic} at level {level} was not delivered: Kafka has no topic {kafka_topic}. "
        f"{_how_to_have(destination)}"
    )


def _how_to_have(destination: Destination) -> str:
    """Return what to do about a topic that Kafka has not."""
    topic, kafka_topic = destination.topic, destination.kafka_topic
    if destination.client and (instead := destination.client.instead_of(kafka_topic)):
        return instead
    how = how_to_create(topic, None if kafka_topic == topic else _SOME_LEVELS)
    return f"{how} Or correct the name."


class _Failures:
    """The failures logged in the last seconds, so that a thousand equal failures are not a thousand lines."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_news(self, sentence: str, now: float) -> bool:
        with _counting:
            last = self._said.pop(sentence, -math.inf)
            is_news = now - last >= _AGAIN_AFTER
            self._said[sentence] = now if is_news else last
            while len(self._said) > _MOST_SENTENCES:
                self._said.pop(next(iter(self._said)))
            return is_news


_failures = _Failures()


class _Watchers:
    """The parts that a standard future has from the start: the waiters' condition, and the callbacks."""

    def __init__(self) -> None:
        self.condition = WholeCondition()
        self.waiters: list[Any] = []
        self.done_callbacks: list[Callable[[Future[RecordMetadata]], object]] = []


class DeliveryFuture(Future[RecordMetadata]):
    """A `concurrent.futures.Future` that costs little until a thread waits for it.

    The standard one makes a lock, a condition and two lists at birth, which costs as much as sending the record. Here
    the condition is made by the first waiter or callback, and the metadata on demand. The future cannot be cancelled: a
    sent record is sent.

    For the sender the future is the record as well: a waiting record is one object.
    """

    # With a dictionary for these it would be three objects, and as many places in memory to look at.
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
    queue: "Queue[Sendable]"  # the queue that it counts for, in the accumulator; None if it waits in none
    size: int  # the bytes that it counts for there
    # The fields of a record that has to wait, and only then: see `Sendable`.
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
        # A call of an `__init__` in Python costs as much again as making the object: `of` sets the fields.
        __init__ = object.__init__

    @staticmethod
    def of(destination: Destination, on_delivery: OnDelivery | None) -> "DeliveryFuture":
        """Return the future of a record for this destination."""
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

    # The standard Future's own fields. Not by `__getattr__`: with it, all other reads here take several times as long.
    _condition: Any = property(lambda self: self._watched().condition)
    _waiters: Any = property(lambda self: self._watched().waiters)
    _done_callbacks: Any = property(lambda self: self._watched().done_callbacks)

    def _watched(self) -> _Watchers:
        if self._watchers is None:
            with _making_watchers:
                if self._watchers is None:
                    self._watchers = _Watchers()
        return self._watchers

    # The standard Future reads it only in the methods that are left to it here.
    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        if self._state != "FINISHED" or self._exception is not None:
            return None
        topic, level = self.destination.topic, self.destination.level
        offset = UNKNOWN_OFFSET if self._offset is None else self._offset
        return RecordMetadata(topic, self._partition, level, offset, self._timestamp)  # type: ignore[arg-type]  # a delivered record has one

    def __call__(self, error: ReportError | None, message: Report) -> None:
        """Take the Kafka client's report, with its error or None.

        The future is its own callback: a bound method would be one more object for each record.
        """
        queue = self.queue
        if queue is not None:
            if not queue.returned:
                queue.reported.append(queue)
            queue.returned += self.size
        if error is not None:
            self.fail(not_delivered(self.destination, error))
            return
        offset = message.offset()
        if offset is None and (doubt := without_place(self.destination)):
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
        """Note that the record was not delivered; without a callback the log tells, as the future may never be asked.

        Of failures with the same text the log tells one every ten seconds; the metrics count them all.
        """
        self.tally.count_failure()
        self._exception = error
        self._state = "FINISHED"
        if self._on_delivery is None and _failures.is_news(str(error), time.monotonic()):
            log.error("%s", error)
        self._announce()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the record's metadata, after up to `timeout` seconds.

        Raises the error that hindered its delivery, or `TimeoutError`.
        """
        left = timeout if self._state == "FINISHED" else self._wait(timeout)
        if self._state == "FINISHED" and self._exception is None:
            return self._result  # type: ignore[return-value]
        try:
            return super().result(left)
        except TimeoutError as error:
            raise self._late(error, timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that hindered the delivery, None if it was delivered, after up to `timeout` seconds."""
        if self._state != "FINISHED":
            left = self._wait(timeout)
            if self._state != "FINISHED":
                try:
                    return super().exception(left)
                except TimeoutError as error:
                    raise self._late(error, timeout) from None
        return self._exception

    def _wait(self, timeout: float | None) -> float | None:
        """Help to take reports, rather than wait for the thread that does; return the time left."""
        start = time.monotonic()
        self.destination.serve_until(self.done, timeout)
        return None if timeout is None else max(0.0, timeout - (time.monotonic() - start))

    def _late(self, error: TimeoutError, timeout: float | None) -> TimeoutError:
        """Return a `TimeoutError` that names the record; an error of the record's own is raised as it is."""
        if error is self._exception or timeout is None:
            return error
        to = self.destination
        late = f"A record for {to.topic} at level {to.level} was not delivered within {timeout:g} s"
        if to.client and to.client.is_missing(to.kafka_topic):
            why = f"as Kafka has no topic {to.kafka_topic}; it may still be, once it has"
            return TimeoutError(f"{late}, {why}. {_how_to_have(to)}")
        return TimeoutError(f"{late}; it may still be{to.client.because() if to.client else ''}.")

    def cancel(self) -> bool:
        """Return False: a record that was sent cannot be called back."""
        return False

    def _announce(self) -> None:
        # A condition made from here on finds the state set; one made before may have a waiter to wake.
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
        # The thread is the producer's, or in a call that has nothing to do with this record. It goes on even after a
        # SystemExit or CancelledError. A real Ctrl-C waits until reports are taken.
        try:
            callback(*args, **kwargs)
        except BaseException:
            log.exception("The %s of a record for %s raised.", name, self.destination.topic)
