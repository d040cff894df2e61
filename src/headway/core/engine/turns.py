"""The ready attempts of a level. Its topics take turns, and so do the partitions of each topic.

Invariant: the attempts of a partition are taken in the order of arrival, or if they have ranks, in the order of rank
and then of arrival. `rotation` decides the order of the turns.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.levels.rotation import Rotation

R = TypeVar("R")


class _ReadyPartition(Generic[R]):
    """The ready attempts of one assignment.

    Attempts that are ready on arrival are added in order, so they are kept in a deque. Only attempts that waited behind
    another record, or for their time, need a heap.
    """

    __slots__ = ("arrived", "in_rotation", "ready", "released", "topic")

    def __init__(self, topic: "_Topic[R]") -> None:
        self.topic = topic
        self.arrived: deque[Attempt[R]] = deque()
        self.released: list[tuple[Any, Attempt[R]]] = []  # a heap, ordered by arrival, or by rank and arrival
        self.ready = 0
        self.in_rotation = False

    def first(self) -> Attempt[R]:
        released, arrived = self.released, self.arrived
        return released[0][1] if released and (not arrived or released[0][0] < arrived[0].order) else arrived[0]

    def pop(self) -> Attempt[R]:
        self.ready -= 1
        released = self.released
        if released and (not self.arrived or released[0][0] < self.arrived[0].order):
            return heappop(released)[1]
        return self.arrived.popleft()


class _Topic(Generic[R]):
    """The partitions of one topic."""

    __slots__ = ("in_rotation", "partitions", "ready")

    def __init__(self) -> None:
        self.partitions: Rotation[_ReadyPartition[R]] = Rotation()
        self.ready = 0
        self.in_rotation = False


class PartitionTurns(Generic[R]):
    """The ready attempts of one level, in the order of the turns of topics and partitions."""

    __slots__ = ("_oldest", "_partitions", "_rotation", "_topics", "ready")

    def __init__(self) -> None:
        self._topics: dict[str, _Topic[R]] = {}
        self._partitions: dict[Assignment[R], _ReadyPartition[R]] = {}
        self._rotation: Rotation[_Topic[R]] = Rotation()
        # the attempt that arrived first, or None if it is not known and must be searched for
        self._oldest: Attempt[R] | None = None
        self.ready = 0

    def __iter__(self) -> Iterator[Attempt[R]]:
        """Yield the ready attempts in no particular order."""
        for partition in self._partitions.values():
            yield from partition.arrived
            yield from (attempt for _, attempt in partition.released)

    def arrive(self, attempts: list[Attempt[R]]) -> None:
        """Add attempts of one partition that are ready on arrival, behind all earlier attempts of the partition."""
        if attempts:
            partition = self._of(attempts[0].assignment)
            partition.arrived.extend(attempts)
            self._add(partition, len(attempts))

    def release(self, attempt: Attempt[R]) -> None:
        """Add an attempt that has become the head of its lane, or whose time has come."""
        partition = self._of(attempt.assignment)
        heappush(partition.released, (attempt.order, attempt))
        self._add(partition, 1)
        if self._oldest is not None and attempt.order < self._oldest.order:
            self._oldest = attempt

    def _of(self, assignment: Assignment[R]) -> _ReadyPartition[R]:
        partition = self._partitions.get(assignment)
        if partition is None:
            topic = self._topics.setdefault(assignment.partition.topic, _Topic())
            partition = self._partitions[assignment] = _ReadyPartition(topic)
        return partition

    def _add(self, partition: _ReadyPartition[R], count: int) -> None:
        topic = partition.topic
        partition.ready += count
        topic.ready += count
        self.ready += count
        topic.partitions.join(partition)
        self._rotation.join(topic)

    def first(self, only_of: Assignment[R] | None = None) -> Attempt[R] | None:
        """Return the attempt that `take` would return, or None if no attempt is ready."""
        if only_of is not None:
            return self._partitions[only_of].first() if self.ready_of(only_of) else None
        return self._rotation.current().partitions.current().first() if self.ready else None

    def take(self, only_of: Assignment[R] | None = None) -> Attempt[R]:
        """Remove and return the first attempt of the partition whose turn it is.

        With `only_of`, the call removes the first attempt of that assignment, even if it is another partition's turn.
        """
        if only_of is None:
            topic = self._rotation.begin_turn()
            partition = topic.partitions.begin_turn()
        else:
            partition = self._partitions[only_of]
            topic = partition.topic
        attempt = partition.pop()
        topic.ready -= 1
        self.ready -= 1
        if attempt is self._oldest:
            self._oldest = None
        return attempt

    def take_many(self, limit: int) -> list[Attempt[R]]:
        """Remove and return up to `limit` attempts.

        The result is the same as that of repeated calls of `take`, but faster.
        """
        count = min(limit, self.ready)
        if count <= 1:
            return [self.take()] if count else []
        topic = self._rotation.current()
        partition = topic.partitions.current()
        if partition.released or not (self._rotation.is_alone() and topic.partitions.is_alone()):
            return [self.take() for _ in range(count)]
        pop = partition.arrived.popleft
        partition.ready -= count
        topic.ready -= count
        self.ready -= count
        self._oldest = None
        return [pop() for _ in range(count)]

    def oldest(self) -> Attempt[R] | None:
        """Return the ready attempt whose record arrived first, or None if no attempt is ready."""
        if self._oldest is None and self.ready:
            firsts = (partition.first() for partition in self._partitions.values() if partition.ready)
            self._oldest = min(firsts, key=lambda attempt: attempt.order)
        return self._oldest

    def ready_of(self, assignment: Assignment[R]) -> int:
        """Return how many attempts of an assignment are ready."""
        partition = self._partitions.get(assignment)
        return partition.ready if partition else 0

    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        """Remove and return the ready attempts of an assignment."""
        partition = self._partitions.pop(assignment, None)
        if partition is None:
            return []
        partition.topic.ready -= partition.ready
        self.ready -= partition.ready
        partition.ready = 0
        self._oldest = None
        return [*partition.arrived, *(attempt for _, attempt in partition.released)]


class RankedTurns(PartitionTurns[R]):
    """The ready attempts of one level. In each partition, the attempt with the lowest rank is taken first.

    If ranks are equal, the attempt that arrived first is taken.
    """

    __slots__ = ("_rank_of",)

    def __init__(self, rank_of: Callable[[Attempt[R]], Any]) -> None:
        super().__init__()
        self._rank_of = rank_of

    def arrive(self, attempts: list[Attempt[R]]) -> None:
        """Add attempts that are ready on arrival."""
        for attempt in attempts:
            self.release(attempt)

    def release(self, attempt: Attempt[R]) -> None:
        """Add an attempt that has become the head of its lane, or whose time has come."""
        partition = self._of(attempt.assignment)
        heappush(partition.released, ((self._rank_of(attempt), attempt.order), attempt))
        self._add(partition, 1)
        self._oldest = None
