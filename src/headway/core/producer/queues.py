"""The accumulator's state for a level, a topic and a partition: the records that wait, and sums of bytes."""

import math
from collections import deque
from collections.abc import Collection, Iterator
from operator import index
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

ANY_PARTITION = -1  # the Kafka client's number for it


NOTHING: deque[Any] = deque()
"""The records of each queue in which none has waited yet: an empty deque of its own takes 620 bytes."""


class Waiting(Protocol):
    """A record as the accumulator sees it: the bytes it counts for, the time since when it waits, and its queue."""

    size: int
    since: float
    queue: Any  # a Queue, set by the accumulator


R = TypeVar("R", bound=Waiting)


class Queue(Generic[R]):
    """The records that wait for one partition, or for none in particular, and the bytes it has in flight.

    Whoever appends to `records` first replaces `NOTHING`.

    A caller that hands over on credit subtracts the size from `credit`. A caller that takes a report adds the size to
    `returned`, and appends the queue to `reported` if `returned` was 0.
    """

    __slots__ = (
        "credit",
        "delivered",
        "in_flight",
        "last_tick",
        "listed",
        "measured",
        "narrowed",
        "partition",
        "quickest",
        "rate",
        "records",
        "reported",
        "reported_at",
        "returned",
        "ticks",
        "timed",
        "timed_since",
        "topic",
        "used",
        "widest",
        "window",
    )

    def __init__(self, topic: "TopicQueues[R]", partition: int, widest: float) -> None:
        self.topic = topic
        self.partition = partition
        self.records: deque[R] = NOTHING
        self.used = 0  # bytes, in flight or waiting
        self.in_flight = 0
        self.credit = 0  # the part of `in_flight` that is not handed over yet
        self.returned = 0
        self.reported = topic.reported
        self.reported_at = -math.inf
        self.listed = False
        self.window = self.widest = widest  # the bound of `in_flight`
        # The measurements that its window follows from: see `FlowControl`.
        self.delivered = self.timed = 0
        self.timed_since = 0.0
        self.narrowed = False
        self.quickest = math.inf
        self.measured = 0.0
        self.rate = self.last_tick = 0.0
        self.ticks = 0


class TopicQueues(Generic[R]):
    """The queues of one level of a topic; `kafka_topic` names it."""

    __slots__ = (
        "kafka_topic",
        "leaders",
        "level",
        "listed",
        "partition_count",
        "partitions",
        "raw",
        "reported",
        "sorting",
        "sticky",
        "sticky_left",
        "turns",
        "undesignated",
        "unplaced",
        "used",
        "waiting",
        "window",
    )

    def __init__(self, kafka_topic: str, level: "Level[R]", reported: list[Queue[R]], window: float) -> None:
        self.kafka_topic = kafka_topic
        self.level = level
        self.reported = reported
        self.window = window
        self.undesignated: Queue[R] = Queue(self, ANY_PARTITION, math.inf)
        self.unplaced: Queue[R] = Queue(self, ANY_PARTITION, math.inf)
        self.raw: Queue[R] = Queue(self, ANY_PARTITION, math.inf)
        self.partitions: dict[int, Queue[R]] = {}
        self.partition_count = 0  # 0 while not known
        self.leaders: Collection[int] = frozenset()  # the partitions that can be sent to
        self.turns: deque[Queue[R]] = deque()
        self.listed = False
        self.used = self.waiting = 0  # `waiting` counts records that were not handed over
        self.sorting: dict[R, None] = {}  # raw records that were taken and are in no queue, in order
        self.sticky: Queue[R] | None = self.unplaced
        self.sticky_left = 0

    @property
    def has_raw(self) -> bool:
        """True if records wait to be sorted, or are being sorted: later records for a partition wait behind them."""
        return bool(self.raw.records or self.sorting)

    def queue(self, partition: int | None) -> Queue[R]:
        """Return the queue of a partition, or the undesignated one."""
        if partition is None:
            return self.undesignated
        found = self.partitions.get(partition)
        if found is None:
            number = index(partition)  # raise for 3.0: as a key it would stand for 3 too, and be refused
            found = self.partitions[number] = Queue(self, number, self.window)
        return found

    def queues(self) -> Iterator[Queue[R]]:
        """Yield all queues."""
        yield self.raw
        yield self.unplaced
        yield self.undesignated
        yield from self.partitions.values()


class Level(Generic[R]):
    """One level: the bytes it uses, those that were delivered, and the topics that take turns."""

    __slots__ = ("delivered", "index", "turns", "used")

    def __init__(self, index: int) -> None:
        self.index = index
        self.used = 0
        self.delivered = 0
        self.turns: deque[TopicQueues[R]] = deque()

    def oldest(self) -> float | None:
        """Return since when the next record waits; it is the oldest up to one round of turns."""
        return self.turns[0].turns[0].records[0].since if self.turns else None


class Batch(NamedTuple, Generic[R]):
    """Records for one partition, in order; `size` is the bytes they count for."""

    queue: Queue[R]
    records: list[R]
    size: int
