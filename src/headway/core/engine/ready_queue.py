"""The works of one level that may run now, and the number of slots that its running works take.

Invariants: `take` gives the work whose record arrived first; `ready` is the number of works that it can still give.
Works that are ready on arrival come in order, so a deque holds them. Only works that waited behind another or for their
time need a heap.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.lanes import ALONE
from headway.core.engine.suspects import is_suspect
from headway.core.engine.work import Batch, Work
from headway.core.engine.work_states import WorkState

R = TypeVar("R")

_READY, _RUNNING = WorkState.READY, WorkState.RUNNING


class ReadyQueue(Generic[R]):
    """A queue of lane heads in order of arrival."""

    __slots__ = ("_arrived", "_released", "ready", "slots")

    def __init__(self) -> None:
        self._arrived: deque[Work[R]] = deque()
        self._released: list[tuple[int, Work[R]]] = []
        self.ready = 0
        self.slots = 0  # stale works count too: each holds its slot until it is reported

    def without_ready(self) -> "ReadyQueue[R]":
        """Return this level as a policy must see it while nothing of it may start."""
        seen: ReadyQueue[R] = ReadyQueue()
        seen.slots = self.slots
        return seen

    def arrive(self, works: list[Work[R]]) -> None:
        """Add works that are ready on arrival, behind all earlier ones."""
        self._arrived.extend(works)
        self.ready += len(works)

    def release(self, work: Work[R]) -> None:
        """Add a work whose turn or time has come."""
        work.state = _READY
        heappush(self._released, (work.order, work))
        self.ready += 1

    def take(self) -> Work[R]:
        """Return the first work, which runs from now on in a slot of its own."""
        self.slots += 1
        return self._start_first()

    def take_batch(self, max_size: int, now: float) -> list[Work[R]]:
        """Take the first work with those behind it in its lane; without a lane, with the next works that have none.

        A suspect is a batch of its own.
        """
        self.slots += 1
        works = [self._start_first()]
        if is_suspect(works[0].failure):
            max_size = 1
        if works[0].lane is ALONE:
            while self.ready and len(works) < max_size and _joins(self._first()):
                works.append(self._start_first())
        else:
            while len(works) < max_size and (behind := works[-1].next) and _follows(behind, now):
                works.append(behind)
        batch = Batch(works)
        for work in works:
            work.batch, work.state = batch, _RUNNING
        return works

    def _start_first(self) -> Work[R]:
        released, arrived = self._released, self._arrived
        if released and (not arrived or released[0][0] < arrived[0].order):
            work = heappop(released)[1]
        else:
            work = arrived.popleft()
        self.ready -= 1
        work.state = _RUNNING
        return work

    def oldest(self) -> float | None:
        """Return when the record of the first work arrived."""
        return self._first().arrived if self.ready else None

    def drop(self, assignment: Assignment[R]) -> None:
        """Forget the works of an assignment that ended."""
        self._arrived = deque(work for work in self._arrived if work.assignment is not assignment)
        self._released = [entry for entry in self._released if entry[1].assignment is not assignment]
        heapify(self._released)
        self.ready = len(self._arrived) + len(self._released)

    def _first(self) -> Work[R]:
        released, arrived = self._released, self._arrived
        return released[0][1] if released and (not arrived or released[0][0] < arrived[0].order) else arrived[0]


def _joins(work: Work[Any]) -> bool:
    """Return whether a work may be in a batch of works without a lane."""
    return work.lane is ALONE and not is_suspect(work.failure)


def _follows(work: Work[Any], now: float) -> bool:
    """Return whether a work may be in a batch behind the one before it in its lane."""
    return work.not_before <= now and not is_suspect(work.failure)
