"""Works that wait for more works to fill a batch.

Invariants: a work waits at most `linger` seconds after its record arrived. No work waits in a lane that has enough
works for a batch. Works without a lane do not wait if their level, or if batches are of one partition their partition,
has enough for a batch. A work that failed before does not wait.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.lanes import ALONE
from headway.core.engine.work import Work

R = TypeVar("R")


class Batching(Generic[R]):
    """The waiting heads, by the group that fills a batch: a lane, or a level's or partition's works without one."""

    def __init__(self, size: int, linger: float, of_one_partition: bool = False) -> None:
        self._size = size  # the number of works at which a batch is full
        self._linger = linger
        self._of_one_partition = of_one_partition
        self._waiting: dict[Hashable, list[Work[R]]] = {}
        self._counts: dict[Hashable, int] = {}

    def until(self, head: Work[R]) -> float:
        """Return the time until which a head waits."""
        return 0.0 if head.failure else head.arrived + self._linger

    def wait(self, head: Work[R]) -> list[Work[R]]:
        """Let a head wait. If its batch is full now, returns the heads of that batch, which no longer wait."""
        group = self._group(head)
        self._waiting.setdefault(group, []).append(head)
        self._counts[group] = self._counts.get(group, 0) + self._length(head)
        return self._take_if_full(group)

    def join(self, work: Work[R]) -> list[Work[R]]:
        """Count a work that is behind others in its lane. If the batch is full now, returns the head that waited."""
        group = self._group(work)
        if group not in self._waiting:
            return []
        self._counts[group] += 1
        return self._take_if_full(group)

    def leave(self, head: Work[R]) -> None:
        """Remove a head whose time has come, if it waited here."""
        group = self._group(head)
        waiting = self._waiting.get(group, [])
        if head in waiting:
            waiting.remove(head)
            self._counts[group] -= 1
            if not waiting:
                self._forget(group)

    def take_all(self) -> list[Work[R]]:
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

    def _length(self, head: Work[R]) -> int:
        length, work = 1, head
        while length < self._size and work.next:
            length, work = length + 1, work.next
        return length

    def _take_if_full(self, group: Hashable) -> list[Work[R]]:
        return self._forget(group) if self._counts[group] >= self._size else []

    def _forget(self, group: Hashable) -> list[Work[R]]:
        del self._counts[group]
        return self._waiting.pop(group)

    def _group(self, work: Work[R]) -> Hashable:
        if work.lane is not ALONE:
            return work.assignment, work.lane
        return work.assignment if self._of_one_partition else work.level
