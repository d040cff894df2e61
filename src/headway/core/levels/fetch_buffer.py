"""The records that were fetched from one level ahead of their turn: they leave in turns, by topic and by partition.

Invariants: the records of a partition leave in the order in which they came. The topics of a level take turns, and so
do the partitions of each topic. A quiet partition, which had nothing and has little, goes first in at most one half of
what is taken: so it does not wait behind floods, and many quiet ones cannot stop a flood. A partition is held, so that
what comes of it is collected elsewhere, from when it has more than its share of a full buffer until nothing of it is
left. So a partition that is not flooded is never held. What waits of a partition that is set aside stays, and does not
count.
"""

from collections import deque
from collections.abc import Hashable, KeysView
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")

_LEAST_TURN = 16  # records; a turn for each record would cost more than the record

_MANY = 32  # partitions whose fetches may wait at once
_LEAST_SHARE = 65_536  # bytes; who has less is not flooded, however many others are


class _Partition(Generic[P, R]):
    """The waiting records of one partition: whole lists as they came, of the first one the rest from `start` on."""

    __slots__ = ("count", "has_turn", "is_aside", "lists", "name", "size", "start", "topic")

    def __init__(self, name: P, topic: "_Topic[P, R]", is_aside: bool) -> None:
        self.name = name
        self.topic = topic
        self.lists: deque[list[R]] = deque()
        self.start = self.count = self.size = 0
        self.has_turn = False  # whether it is among the quiet ones or those of its topic
        self.is_aside = is_aside

    @property
    def ready(self) -> int:
        return 0 if self.is_aside else self.count

    def pop(self, limit: int) -> list[R]:
        """Remove and return the first records, at most `limit` of them."""
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


class _Topic(Generic[P, R]):
    """The partitions of one topic that are not quiet, the next one first."""

    __slots__ = ("has_turn", "partitions")

    def __init__(self) -> None:
        self.partitions: deque[_Partition[P, R]] = deque()
        self.has_turn = False


class FetchBuffer(Generic[P, R]):
    """Waiting records of one level.

    The buffer is full when more waits than its caller takes in `seconds`, within these bounds.

    Args:
        least: The bytes that may always wait before partitions are held.
        most: The bytes that may wait if the caller takes them fast.
        seconds: How long what waits should last.
    """

    def __init__(self, least: int, most: int, seconds: float) -> None:
        self._least, self._most, self._seconds = min(least, most), most, seconds
        self._room = most
        self._partitions: dict[P, _Partition[P, R]] = {}
        self._waiting: set[P] = set()  # those with records that `take` can give
        self._quiet: deque[_Partition[P, R]] = deque()  # those that had nothing, and have little; the next one first
        self._topics: dict[str, _Topic[P, R]] = {}
        self._turns: deque[_Topic[P, R]] = deque()  # topics with partitions; the next one first
        self._aside: set[P] = set()
        self._held: dict[P, None] = {}
        self._came: set[P] = set()  # held ones of which something has come since `release`
        self._count = self._size = self._size_aside = 0
        self._odd = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """True while more waits than there is room for."""
        return self._size > self._room

    @property
    def is_overfull(self) -> bool:
        """True while so much of so many partitions waits that no more than a little should come of any."""
        return self._size > 2 * self._most and len(self._waiting) > _MANY

    @property
    def is_full_aside(self) -> bool:
        """True if what was set aside takes as much as may wait."""
        return self._size_aside > self._most

    @property
    def held(self) -> KeysView[P]:
        """The partitions that are held."""
        return self._held.keys()

    def put(self, topic: str, name: P, records: list[R], size: int) -> None:
        """Append the next records of a partition, of so many bytes in all; the buffer keeps the list."""
        if not records:
            return
        partition = self._partitions.get(name)
        if partition is None:
            partition = _Partition(name, self._topics.setdefault(topic, _Topic()), name in self._aside)
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

    def _count_in(self, partition: _Partition[P, R], count: int, size: int) -> None:
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
        """Note how many records are taken in a second, which sets how much may wait."""
        if self._count:
            size = self._seconds * pace * self._size / self._count
            self._room = int(min(self._most, max(self._least, size)))

    # Turns

    def take(self, limit: int) -> list[R]:
        """Remove and return the next records, at most `limit` of them."""
        self._odd = limit + self._odd & 1  # of single records every second one
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
        """Remove and return the next records of partitions that had none, and of which little has come since."""
        taken: list[R] = []
        while self._quiet and len(taken) < limit:
            partition = self._quiet[0]
            if partition.ready:
                taken += self._pop(partition, min(_LEAST_TURN, limit - len(taken)))
            if not partition.ready or len(taken) < limit:
                self._quiet.popleft()
                self._queue(partition)
        return taken

    def _queue(self, partition: _Partition[P, R]) -> None:
        """Let a partition that had its turn wait for the next, if it has more."""
        partition.has_turn = bool(partition.ready)
        if partition.has_turn:
            topic = partition.topic
            topic.partitions.append(partition)
            if not topic.has_turn:
                topic.has_turn = True
                self._turns.append(topic)

    def _pop(self, partition: _Partition[P, R], limit: int) -> list[R]:
        size = partition.size
        taken = partition.pop(limit)
        self._count -= len(taken)
        self._size -= size - partition.size
        if not partition.count:
            self._waiting.discard(partition.name)
        return taken

    # One partition

    def first(self, name: P) -> R | None:
        """Return the first waiting record of a partition; None if it has none."""
        partition = self._partitions.get(name)
        return partition.lists[0][partition.start] if partition and partition.count else None

    def set_aside(self, name: P) -> None:
        """Keep what waits of a partition, and what comes, until it is restored."""
        self._aside.add(name)
        partition = self._partitions.get(name)
        if partition and not partition.is_aside:
            partition.is_aside = True
            self._waiting.discard(name)
            self._count -= partition.count
            self._size -= partition.size
            self._size_aside += partition.size

    def restore(self, name: P) -> None:
        """Give what waits of a partition again, which was set aside."""
        self._aside.discard(name)
        partition = self._partitions.get(name)
        if partition and partition.is_aside:
            partition.is_aside = False
            self._size_aside -= partition.size
            if partition.count:
                self._count_in(partition, partition.count, partition.size)

    def drop(self, name: P) -> None:
        """Drop the records of a partition, which is held no more."""
        self._held.pop(name, None)
        if partition := self._partitions.pop(name, None):
            self._waiting.discard(name)
            if partition.is_aside:
                self._size_aside -= partition.size
            else:
                self._count -= partition.count
                self._size -= partition.size
            partition.is_aside = True  # it is still among those that take turns

    def forget(self, name: P) -> None:
        """Drop the records of a partition that is read no more."""
        self.drop(name)
        self._aside.discard(name)

    # Who is held

    def hold(self) -> list[P]:
        """Return the partitions that are held from now on: all that have more than their share of a full buffer."""
        if not self.is_full:
            return []
        share = self._share()
        held = [name for name in self._waiting if self._partitions[name].size > share and name not in self._held]
        self._held.update(dict.fromkeys(held))
        return held

    @property
    def wants_more(self) -> bool:
        """True if what is collected of held partitions should come: half of what may wait has left."""
        return bool(self._held) and self._size <= self._room // 2

    def release(self) -> list[P]:
        """Return the partitions that are held no more: nothing of them waits, nor has come since the last call."""
        stay = self._waiting | self._came | self._aside
        released = [name for name in self._held if name not in stay]
        for name in released:
            del self._held[name]
        self._came.clear()
        return released

    def _share(self) -> int:
        return max(min(_LEAST_SHARE, self._room), self._room // max(1, len(self._waiting | self._held.keys())))
