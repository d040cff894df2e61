"""The records of an asyncio producer, each with the future that its sender awaits, and the count of waiting records."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from headway.kafka.producer.delivery import Destination, Report, ReportError, Tally, not_delivered, without_offset
from headway.records.record_types import UNKNOWN_OFFSET, Header, RecordMetadata

if TYPE_CHECKING:
    from headway.core.producer.queues import Queue
    from headway.kafka.producer.sendable import Sendable


class AwaitedRecord:
    """A record of an asyncio producer, which stores the delivery report until the event loop resolves the future.

    It takes half as long to create and resolve an `AwaitedRecord` as a `DeliveryFuture` with a callback.
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

    queue: "Queue[Sendable]"  # the record's queue in the accumulator
    size: int
    tally: Tally
    place: tuple[int | None, int | None, int]
    # The following fields are set only while the record waits in the accumulator; see `Sendable`.
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
        """Process the record's delivery report, with its error or None. Thread-safe."""
        queue = self.queue
        if not queue.returned:
            queue.reported.append(queue)
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
        self.place = (message.partition(), offset, message.timestamp()[1])
        self.reported.append(self)

    def fail(self, error: Exception) -> None:
        """Mark the record as not delivered because of this error. Thread-safe."""
        self.tally.count_failure(error)
        self.error = error
        self.reported.append(self)

    def resolve(self) -> None:
        """Resolve the awaited future, unless it was cancelled. Must be called in the event loop's thread."""
        if self.awaited.done():
            return
        if self.error is not None:
            self.awaited.set_exception(self.error)
            return
        partition, offset, timestamp = self.place
        to, offset = self.destination, UNKNOWN_OFFSET if offset is None else offset
        # A delivered record always has a partition.
        self.awaited.set_result(RecordMetadata(to.topic, partition, to.level, offset, timestamp))  # type: ignore[arg-type]


class Waiters:
    """The number of records that wait for buffer space in the same queue, and the lock that the first of them holds."""

    def __init__(self) -> None:
        self.first = asyncio.Lock()
        self.count = 0
