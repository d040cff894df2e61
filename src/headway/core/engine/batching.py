"""Makes records wait until enough records have arrived to fill a batch.

Invariants: a record waits for a batch for at most `linger` seconds after it arrived. A record does not wait if its lane
has enough records for a batch. Records without a lane do not wait if their level has enough such records for a batch.
If all records of a batch must be from one partition, the records of each partition are counted instead. A record that
failed before does not wait.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.lanes import ALONE

R = TypeVar("R")


class Batching(Generic[R]):
    """The waiting heads of lanes, by the group whose records can fill their batch.

    A group is either a lane, or all records without a lane at one level. If all records of a batch must be from one
    partition, the second kind of group is all records without a lane in one partition.
    """

    def __init__(self, size: int, linger: float, of_one_partition: bool = False) -> None:
        self._size = size  # the number of records at which a batch is full
        self._linger = linger
        self._of_one_partition = of_one_partition
        self._waiting: dict[Hashable, list[Attempt[R]]] = {}
        self._counts: dict[Hashable, int] = {}

    def until(self, head: Attempt[R]) -> float:
        """Return the time until which a head waits for its batch; 0 if it must not wait."""
        return 0.0 if head.failure else head.arrived + self._linger

    def wait(self, head: Attempt[R]) -> list[Attempt[R]]:
        """Make a head wait. If its batch is full now, remove and return all heads that waited for this batch."""
        group = self._group(head)
        self._waiting.setdefault(group, []).append(head)
        self._counts[group] = self._counts.get(group, 0) + self._length(head)
        return self._take_if_full(group)

    def join(self, attempt: Attempt[R]) -> list[Attempt[R]]:
        """Count a record that is behind others in its lane. If the batch is full now, remove and return the head."""
        group = self._group(attempt)
        if group not in self._waiting:
            return []
        self._counts[group] += 1
        return self._take_if_full(group)

    def leave(self, head: Attempt[R]) -> None:
        """Remove a head that must not wait any longer. Does nothing if the head does not wait for a batch."""
        group = self._group(head)
        waiting = self._waiting.get(group, [])
        if head in waiting:
            waiting.remove(head)
            self._counts[group] -= 1
            if not waiting:
                self._forget(group)

    def take_all(self) -> list[Attempt[R]]:
        """Remove and return all waiting heads."""
        waiting = [head for heads in self._waiting.values() for head in heads]
        self._waiting.clear()
        self._counts.clear()
        return waiting

    def drop(self, assignment: Assignment[R]) -> None:
        """Remove the heads of an assignment that has ended."""
        for heads in list(self._waiting.values()):
            for head in [head for head in heads if head.assignment is assignment]:
                self.leave(head)

    def _length(self, head: Attempt[R]) -> int:
        length, attempt = 1, head
        while length < self._size and attempt.next:
            length, attempt = length + 1, attempt.next
        return length

    def _take_if_full(self, group: Hashable) -> list[Attempt[R]]:
        return self._forget(group) if self._counts[group] >= self._size else []

    def _forget(self, group: Hashable) -> list[Attempt[R]]:
        del self._counts[group]
        return self._waiting.pop(group)

    def _group(self, attempt: Attempt[R]) -> Hashable:
        if attempt.lane is not ALONE:
            return attempt.assignment, attempt.lane
        return attempt.assignment if self._of_one_partition else attempt.level
