"""Works that wait for others to fill a batch.

Invariants: a work waits no longer than `linger` after its record arrived. No work waits in a lane that has enough for a
batch; nor, without a lane, in a level that has enough, or a partition if batches are of one. A work that failed once
does not wait again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.lanes import ALONE
from headway.core.engine.work import Work

R = TypeVar("R")


class Batching(Generic[R]):
    """The heads that wait: one of each lane; and all works of a level, or of a partition, that have no lane."""

    def __init__(self, size: int, linger: float, of_one_partition: bool = False) -> None:
        self._size = size  # of a batch that need not wait
        self._linger = linger
        self._of_one_partition = of_one_partition
        self._waiting: dict[Hashable, list[Work[R]]] = {}
        self._counts: dict[Hashable, int] = {}

    def until(self, head: Work[R]) -> float:
        """Return when a head need not wait any more."""
        return 0.0 if head.failure else head.arrived + self._linger

    def wait(self, head: Work[R]) -> list[Work[R]]:
        """Let a head wait, and return the heads that need not wait any more, since it makes a batch full."""
        place = self._place(head)
        self._waiting.setdefault(place, []).append(head)
        self._counts[place] = self._counts.get(place, 0) + self._length(head)
        return self._take_if_full(place)

    def join(self, work: Work[R]) -> list[Work[R]]:
        """Count a work that comes behind others of its lane; return its head if it waited and the batch is now full."""
        place = self._place(work)
        if place not in self._waiting:
            return []
        self._counts[place] += 1
        return self._take_if_full(place)

    def leave(self, head: Work[R]) -> None:
        """Take out a head whose time is up, if it waited here."""
        place = self._place(head)
        waiting = self._waiting.get(place, [])
        if head in waiting:
            waiting.remove(head)
            self._counts[place] -= 1
            if not waiting:
                self._forget(place)

    def take_all(self) -> list[Work[R]]:
        """Take out all heads that wait here, and return them."""
        waiting = [head for heads in self._waiting.values() for head in heads]
        self._waiting.clear()
        self._counts.clear()
        return waiting

    def drop(self, assignment: Assignment[R]) -> None:
        """Forget the works of an assignment that ended."""
        for heads in list(self._waiting.values()):
            for head in [head for head in heads if head.assignment is assignment]:
                self.leave(head)

    def _length(self, head: Work[R]) -> int:
        length, work = 1, head
        while length < self._size and work.next:
            length, work = length + 1, work.next
        return length

    def _take_if_full(self, place: Hashable) -> list[Work[R]]:
        return self._forget(place) if self._counts[place] >= self._size else []

    def _forget(self, place: Hashable) -> list[Work[R]]:
        del self._counts[place]
        return self._waiting.pop(place)

    def _place(self, work: Work[R]) -> Hashable:
        if work.lane is not ALONE:
            return work.assignment, work.lane
        return work.assignment if self._of_one_partition else work.level
