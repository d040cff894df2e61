"""A record that an asynchronous producer has sent or will send, and the records that wait for buffer space."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from headway.kafka.producer.delivery import Destination, Report, ReportError, Tally, not_delivered, without_offset
from headway.records.record_types import UNKNOWN_OFFSET, Header, RecordMetadata

if TYPE_CHECKING:
    from headway.core.producer.queues import Queue
    from headway.kafka.producer.sendable import Sendable


class AwaitedRecord:
    """A record of an asynchronous producer, which keeps the client's report until the loop resolves its future.

    It takes half the time of a `DeliveryFuture` with a callback.
    """

    __slots__ = (
        "awaited",
        "error",
        "headers",
        "key",
        "partition",
        "place",
        "queue",
        "reported",
        "since",
        "size",
        "tally",
        "timestamp",
        "value",
    )

    queue: "Queue[Sendable]"  # the accumulator's queue, as in a `DeliveryFuture`
    size: int
    tally: Tally
    place: tuple[int | None, int | None, int]
    # These fields are set only while a record waits in the accumulator: see `Sendable`.
    key: Any
    value: Any
    headers: list[Header] | None
    partition: int | None
    timestamp: int
    since: float

    def __init__(
        self, destination: Destination, awaited: asyncio.Future[RecordMetadata], reported: "deque[AwaitedRecord]"
    ) -> None:
        self.tally = destination.tally
        self.awaited = awaited
        self.reported = reported
        self.error: Exception | None = None

    @property
    def destination(self) -> Destination:
        """The destination of the record."""
        return self.tally.destination

    def __call__(self, error: ReportError | None, message: Report) -> None:
        """Receive the delivery report, with its error or None. Any thread may call it."""
        queue = self.queue
        if not queue.returned:
            queue.reported.append(queue)
        queue.returned += self.size
        if error is not None:
            self.fail(not_delivered(self.destination, error))
            return
        offset = message.offset()
        if offset is None and (doubt := without_offset(self.destination)):
            self.fail(doubt)
            return
        self.tally.delivered += 1
        self.place = (message.partition(), offset, message.timestamp()[1])
        self.reported.append(self)

    def fail(self, error: Exception) -> None:
        """Record that the record was not delivered. Any thread may call it."""
        self.tally.count_failure()
        self.error = error
        self.reported.append(self)

    def resolve(self) -> None:
        """Resolve the awaited future, in the loop, unless it was cancelled."""
        if self.awaited.done():
            return
        if self.error is not None:
            self.awaited.set_exception(self.error)
            return
        partition, offset, timestamp = self.place
        to, offset = self.destination, UNKNOWN_OFFSET if offset is None else offset
        self.awaited.set_result(RecordMetadata(to.topic, partition, to.level, offset, timestamp))  # type: ignore[arg-type]  # a delivered record has one


class Waiters:
    """The records that wait for buffer space for the same partition, in order. The first one holds the lock."""

    def __init__(self) -> None:
        self.first = asyncio.Lock()
        self.count = 0
