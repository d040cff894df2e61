"""The future of a record that was sent."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from headway.errors import DeliveryError
from headway.records import RecordMetadata

log = logging.getLogger(__name__)

OnDelivery = Callable[[Exception | None, RecordMetadata | None], Any]

_making_condition = threading.Lock()


class Report(Protocol):
    """A delivered message, as the Kafka client reports it."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class Destination:
    """One level of a topic, and what became of the records sent there."""

    __slots__ = ("delivered", "failed", "kafka_topic", "level", "sent", "topic")

    def __init__(self, topic: str, level: int, kafka_topic: str) -> None:
        self.topic = topic
        self.level = level
        self.kafka_topic = kafka_topic
        self.sent = self.delivered = self.failed = 0


class DeliveryFuture(Future[RecordMetadata]):
    """A `concurrent.futures.Future` that costs little until somebody waits for it.

    The standard one makes a lock, a condition and two lists at birth, which is as much as sending the record. Here
    states are class attributes until they change, the condition is made by the first who waits or adds a callback,
    and the metadata by who asks for it. It cannot be cancelled: what was sent is sent.
    """

    _state = "PENDING"
    _exception: BaseException | None = None
    _on_delivery: OnDelivery | None = None
    _watched = False

    def __init__(self, destination: Destination, on_delivery: OnDelivery | None) -> None:
        self.destination = destination
        if on_delivery is not None:
            self._on_delivery = on_delivery

    def __getattr__(self, name: str) -> Any:
        # Only what is missing comes here: what `Future.__init__` would have made.
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        with _making_condition:
            if not self._watched:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._condition = threading.Condition()
                self._watched = True
        return getattr(self, name)

    # The standard Future only reads it in the methods that are left to it here.
    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        if self._state != "FINISHED" or self._exception is not None:
            return None
        partition, offset, (_, timestamp) = self._place
        return RecordMetadata(self.destination.topic, partition, self.destination.level, offset, timestamp)

    def report(self, error: Any, message: Report) -> None:
        """Take the Kafka client's report, with its error or None."""
        if error is not None:
            topic, level = self.destination.topic, self.destination.level
            self.fail(DeliveryError(f"A record for {topic} at level {level} was not delivered: {error.str()}."))
            return
        self.destination.delivered += 1
        self._place: tuple[Any, Any, tuple[int, int]] = message.partition(), message.offset(), message.timestamp()
        self._state = "FINISHED"
        if self._watched or self._on_delivery is not None:
            self._announce()

    def fail(self, error: Exception) -> None:
        """The record was not delivered; without a callback the log says so, since nobody may ask the future."""
        self.destination.failed += 1
        self._exception = error
        self._state = "FINISHED"
        if self._on_delivery is None:
            log.error("%s", error)
        self._announce()

    def cancel(self) -> bool:
        """A record that was sent cannot be called back."""
        return False

    def _announce(self) -> None:
        # A condition made from here on finds the state set; one made before has somebody to wake.
        if self._watched:
            with self._condition:
                for waiter in self._waiters:
                    waiter.add_result(self) if self._exception is None else waiter.add_exception(self)
                self._condition.notify_all()
            self._invoke_callbacks()
        if self._on_delivery is not None:
            self._call_back(self._on_delivery)

    def _call_back(self, on_delivery: OnDelivery) -> None:
        try:
            on_delivery(self._exception, self._result)  # type: ignore[arg-type]  # `fail` takes no other
        except Exception:
            log.exception("The on_delivery callback of a record for %s raised.", self.destination.topic)
