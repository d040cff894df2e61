"""The state of the accumulator for each level, topic and partition: waiting records and byte counts."""

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import index
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

ANY_PARTITION = -1  # stands for any partition in librdkafka


NOTHING: deque[Any] = deque()
"""The `records` of every queue that has never had a waiting record.

All these queues share one deque, because an empty deque takes 620 bytes.
"""


class Waiting(Protocol):
    """The attributes of a record that the accumulator uses."""

    size: int  # bytes
    since: float  # when the record started to wait
    queue: Any  # the record's `Queue`, which the accumulator sets


R = TypeVar("R", bound=Waiting)


@dataclass(slots=True, eq=False)
class Queue(Generic[R]):
    """The records that wait for one partition, or for any partition, and the number of bytes in flight.

    Before code appends to `records`, it must replace `NOTHING` with a new deque.

    A caller that hands over a record on credit subtracts the record's size from `credit`. A caller that receives a
    delivery report adds the record's size to `returned`, and first appends the queue to `reported` if `returned` is 0.
    """

    topic: "TopicQueues[R]"
    partition: int
    widest: float
    records: deque[R] = field(default_factory=lambda: NOTHING)
    used: int = 0  # the bytes that wait or are in flight
    in_flight: int = 0  # the bytes that are in flight, including credit
    credit: int = 0  # the part of `in_flight` that has not been handed over yet
    returned: int = 0  # the bytes whose delivery was reported since the last `settle`
    reported_at: float = -math.inf
    listed: bool = False
    # The measurements from which `FlowControl` computes the window.
    delivered: int = 0
    timed: int = 0
    timed_since: float = 0.0
    narrowed: bool = False
    quickest: float = math.inf
    measured: float = 0.0
    rate: float = 0.0
    last_tick: float = 0.0
    ticks: int = 0
    reported: "list[Queue[R]]" = field(init=False)
    window: float = field(init=False)  # the limit of `in_flight`

    def __post_init__(self) -> None:
        self.reported = self.topic.reported
        self.window = self.widest


@dataclass(slots=True, eq=False)
class TopicQueues(Generic[R]):
    """The queues of one Kafka topic, which holds one level of a topic."""

    kafka_topic: str
    level: "Level[R]"
    reported: list[Queue[R]]
    window: float
    partitions: dict[int, Queue[R]] = field(default_factory=dict)
    partition_count: int = 0  # 0 while the number is not known
    leaders: Collection[int] = frozenset()  # the partitions that have a leader
    turns: deque[Queue[R]] = field(default_factory=deque)
    listed: bool = False
    used: int = 0
    waiting: int = 0  # the number of records that have not been handed over
    sorting: dict[R, None] = field(default_factory=dict)  # the raw records that are being sorted, in order
    sticky_left: int = 0
    undesignated: Queue[R] = field(init=False)
    unplaced: Queue[R] = field(init=False)
    raw: Queue[R] = field(init=False)
    sticky: Queue[R] | None = field(init=False)

    def __post_init__(self) -> None:
        self.undesignated = Queue(self, ANY_PARTITION, math.inf)
        self.sticky = self.unplaced = Queue(self, ANY_PARTITION, math.inf)
        self.raw = Queue(self, ANY_PARTITION, math.inf)

    @property
    def has_raw(self) -> bool:
        """True if raw records are waiting to be sorted, or are being sorted. Later records must wait behind them."""
        return bool(self.raw.records or self.sorting)

    def queue(self, partition: int | None) -> Queue[R]:
        """Return the queue of a partition, or the undesignated queue for None."""
        if partition is None:
            return self.undesignated
        found = self.partitions.get(partition)
        if found is None:
            # raises an error for 3.0, which equals the dict's key 3, but which librdkafka would refuse
            number = index(partition)
            found = self.partitions[number] = Queue(self, number, self.window)
        return found

    def queues(self) -> Iterator[Queue[R]]:
        """Yield all queues of the topic."""
        yield self.raw
        yield self.unplaced
        yield self.undesignated
        yield from self.partitions.values()


@dataclass(slots=True, eq=False)
class Level(Generic[R]):
    """The state of a level: its bytes in the buffer, its delivered bytes, and its topics in the order of turns."""

    index: int
    used: int = 0
    delivered: int = 0
    turns: deque[TopicQueues[R]] = field(default_factory=deque)

    def oldest(self) -> float | None:
        """Return when the next record started to wait, or None if no record can be sent.

        The next record is nearly the oldest: any older record can be sent in the same round of turns.
        """
        return self.turns[0].turns[0].records[0].since if self.turns else None


class Batch(NamedTuple, Generic[R]):
    """Records for one partition, in order, with their total size in bytes."""

    queue: Queue[R]
    records: list[R]
    size: int
