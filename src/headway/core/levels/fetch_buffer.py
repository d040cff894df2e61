"""A buffer for records of one level that were fetched in advance.

Topics take turns, and so do the partitions of a topic.

Invariants:
- The records of a partition are taken in the order in which they arrived.
- A partition is *quiet* if it has only a few records in the buffer and had none before them. Quiet partitions go first,
  but get at most half of the records that are taken. So a quiet partition does not wait behind busy partitions, and
  cannot make them wait either.
- If the buffer is full, a partition with more than its share is *held* until all its records have been taken. Until
  then, further records of this partition are collected elsewhere. A partition that is not busy is never held, unless
  the caller holds it with `hold_one`.
- The records of a partition that is *set aside* stay in the buffer, but are not counted and cannot be taken.
"""

from collections import deque
from collections.abc import Hashable, KeysView
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")

_LEAST_TURN = 16  # the smallest turn, in records; turns of single records would cost more than handling the records

_MANY = 16  # if more partitions than this wait, each is fetched only in small amounts
# the smallest share, in bytes; a partition with fewer bytes is not busy, however many partitions wait
_LEAST_SHARE = 65_536


class _BufferedPartition(Generic[P, R]):
    """The waiting records of one partition, as a queue of fetched lists.

    In the first list, the records before the index `start` have already been taken.
    """

    __slots__ = ("count", "has_turn", "is_aside", "lists", "name", "size", "start", "topic")

    def __init__(self, name: P, topic: "_BufferedTopic[P, R]", is_aside: bool) -> None:
        self.name = name
        self.topic = topic
        self.lists: deque[list[R]] = deque()
        self.start = self.count = self.size = 0
        self.has_turn = False  # whether the partition is in the quiet queue or in its topic's queue
        self.is_aside = is_aside

    @property
    def ready(self) -> int:
        return 0 if self.is_aside else self.count

    def pop(self, limit: int) -> list[R]:
        """Remove and return up to `limit` records from the front."""
        taken = self._pop_together(limit)
        while self.lists and len(taken) < limit:
            taken = taken + self._pop_together(limit - len(taken))
        self.size -= self.size * len(taken) // self.count
        self.count -= len(taken)
        return taken

    def _pop_together(self, limit: int) -> list[R]:
        first, start = self.lists[0], self.start
        if start + limit < len(first):
            self.start += limit
            return first[start : start + limit]
        self.lists.popleft()
        self.start = 0
        return first[start:] if start else first


class _BufferedTopic(Generic[P, R]):
    """The partitions of one topic that are not quiet, in the order of their turns."""

    __slots__ = ("has_turn", "partitions")

    def __init__(self) -> None:
        self.partitions: deque[_BufferedPartition[P, R]] = deque()
        self.has_turn = False


class FetchBuffer(Generic[P, R]):
    """The waiting records of one level.

    The buffer is full when it has more bytes than the caller takes in `seconds`. This limit is never below `least` or
    above `most`.

    Args:
        least: The lowest limit: partitions are never held while fewer bytes than this wait.
        most: The highest limit, which applies while the caller takes records quickly.
        seconds: How long the waiting records of a full buffer should last.
    """

    def __init__(self, least: int, most: int, seconds: float) -> None:
        self._least, self._most, self._seconds = min(least, most), most, seconds
        self._limit = most
        self._partitions: dict[P, _BufferedPartition[P, R]] = {}
        self._waiting: set[P] = set()  # the partitions with records that `take` can return
        self._quiet: deque[_BufferedPartition[P, R]] = deque()  # the quiet partitions in the order of their turns
        self._topics: dict[str, _BufferedTopic[P, R]] = {}
        self._turns: deque[_BufferedTopic[P, R]] = deque()  # topics with queued partitions, in the order of their turns
        self._aside: set[P] = set()
        self._held: dict[P, None] = {}
        self._came: set[P] = set()  # the held partitions with new records since the last call of `release`
        self._count = self._size = self._size_aside = 0
        self._odd = 0  # alternates between 0 and 1 while records are taken one by one

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """True while more bytes wait than the limit."""
        return self._size > self._limit

    @property
    def is_overfull(self) -> bool:
        """True while many partitions have many waiting bytes, so that each should be fetched in small amounts."""
        # Records that are given back are fetched twice. So this begins only well above the limit, which a buffer often
        # exceeds for a moment by what was fetched last.
        return self._size > 3 * self._most // 2 and len(self._waiting) > _MANY

    @property
    def is_full_aside(self) -> bool:
        """True if the records that were set aside take more bytes than the buffer may hold."""
        return self._size_aside > self._most

    @property
    def held(self) -> KeysView[P]:
        """The partitions that are held."""
        return self._held.keys()

    def put(self, topic: str, name: P, records: list[R], size: int) -> None:
        """Append the next records of a partition. `size` is their total size in bytes.

        The buffer keeps the list, so the caller must not change it afterwards.
        """
        if not records:
            return
        partition = self._partitions.get(name)
        if partition is None:
            partition = _BufferedPartition(name, self._topics.setdefault(topic, _BufferedTopic()), name in self._aside)
            self._partitions[name] = partition
        partition.lists.append(records)
        partition.count += len(records)
        partition.size += size
        if name in self._held:
            self._came.add(name)
        if partition.is_aside:
            self._size_aside += size
        else:
            self._count_in(partition, len(records), size)

    def _count_in(self, partition: _BufferedPartition[P, R], count: int, size: int) -> None:
        self._count += count
        self._size += size
        self._waiting.add(partition.name)
        if partition.has_turn:
            return
        if partition.count > _LEAST_TURN:
            self._queue(partition)
        else:
            partition.has_turn = True
            self._quiet.append(partition)

    def keep_pace(self, pace: float) -> None:
        """Set the limit of the buffer from `pace`, the number of records that are taken per second."""
        if self._count:
            size = self._seconds * pace * self._size / self._count
            self._limit = int(min(self._most, max(self._least, size)))

    # Turns

    def take(self, limit: int) -> list[R]:
        """Remove and return up to `limit` records whose turn is next."""
        # if records are taken one by one, every second record is from a quiet partition
        self._odd = limit + self._odd & 1
        turn = max(_LEAST_TURN, limit // max(1, len(self._waiting)))
        taken = self.take_quiet((limit + self._odd) // 2) if self._quiet else []
        while self._turns and len(taken) < limit:
            topic = self._turns.popleft()
            partition = topic.partitions.popleft()
            if partition.ready:
                taken += self._pop(partition, min(turn, limit - len(taken)))
            self._queue(partition)
            topic.has_turn = bool(topic.partitions)
            if topic.has_turn:
                self._turns.append(topic)
        return taken + self.take_quiet(limit - len(taken)) if self._quiet else taken

    def take_quiet(self, limit: int) -> list[R]:
        """Remove and return up to `limit` records of quiet partitions."""
        taken: list[R] = []
        while self._quiet and len(taken) < limit:
            partition = self._quiet[0]
            if partition.ready:
                taken += self._pop(partition, min(_LEAST_TURN, limit - len(taken)))
            if not partition.ready or len(taken) < limit:
                self._quiet.popleft()
                self._queue(partition)
        return taken

    def _queue(self, partition: _BufferedPartition[P, R]) -> None:
        """Queue a partition for its next turn if it has records."""
        partition.has_turn = bool(partition.ready)
        if partition.has_turn:
            topic = partition.topic
            topic.partitions.append(partition)
            if not topic.has_turn:
                topic.has_turn = True
                self._turns.append(topic)

    def _pop(self, partition: _BufferedPartition[P, R], limit: int) -> list[R]:
        size = partition.size
        taken = partition.pop(limit)
        self._count -= len(taken)
        self._size -= size - partition.size
        if not partition.count:
            self._waiting.discard(partition.name)
        return taken

    # One partition

    def first(self, name: P) -> R | None:
        """Return the first waiting record of a partition, or None if no record of the partition waits."""
        partition = self._partitions.get(name)
        return partition.lists[0][partition.start] if partition and partition.count else None

    def set_aside(self, name: P) -> None:
        """Keep back the waiting records of a partition, and its later records, until the partition is restored."""
        self._aside.add(name)
        partition = self._partitions.get(name)
        if partition and not partition.is_aside:
            partition.is_aside = True
            self._waiting.discard(name)
            self._count -= partition.count
            self._size -= partition.size
            self._size_aside += partition.size

    def restore(self, name: P) -> None:
        """Make the records of a partition available again after it was set aside."""
        self._aside.discard(name)
        partition = self._partitions.get(name)
        if partition and partition.is_aside:
            partition.is_aside = False
            self._size_aside -= partition.size
            if partition.count:
                self._count_in(partition, partition.count, partition.size)

    def drop(self, name: P) -> None:
        """Drop the records of a partition, and stop holding the partition."""
        self._held.pop(name, None)
        if partition := self._partitions.pop(name, None):
            self._waiting.discard(name)
            if partition.is_aside:
                self._size_aside -= partition.size
            else:
                self._count -= partition.count
                self._size -= partition.size
            partition.is_aside = True  # the queues still contain this partition, and skip it because of this

    def forget(self, name: P) -> None:
        """Drop the records of a partition that is no longer read. The partition is then neither held nor set aside."""
        self.drop(name)
        self._aside.discard(name)

    # Held partitions

    def hold(self) -> list[P]:
        """If the buffer is full, hold all partitions that have more than their share.

        Returns the partitions that were not held before.
        """
        if not self.is_full:
            return []
        share = self._share()
        held = [name for name in self._waiting if self._partitions[name].size > share and name not in self._held]
        self._held.update(dict.fromkeys(held))
        return held

    def hold_one(self, name: P) -> bool:
        """Hold a partition, however little of it waits. Returns whether it was not held before."""
        is_new = name not in self._held
        self._held[name] = None
        return is_new

    @property
    def wants_more(self) -> bool:
        """True if the collected records of held partitions should be added, because the buffer is half empty."""
        return bool(self._held) and self._size <= self._limit // 2

    def release(self) -> list[P]:
        """Stop holding partitions that have no waiting records and got no records since the last call.

        Returns these partitions. A partition that is set aside stays held.
        """
        stay = self._waiting | self._came | self._aside
        released = [name for name in self._held if name not in stay]
        for name in released:
            del self._held[name]
        self._came.clear()
        return released

    def _share(self) -> int:
        return max(min(_LEAST_SHARE, self._limit), self._limit // max(1, len(self._waiting | self._held.keys())))
