"""Heads of lanes that must not run yet: they wait for the time of their retry, or for a batch to fill.

Records with a due time are not among these heads, because they wait in Kafka, in delay topics.

Invariants: a waiting head has one entry with the time until which it waits. The head is released when this time comes,
or when its batch is full. An entry is outdated if the time of its head has changed. There are at most `_MOST_OUTDATED`
outdated entries, or half of all entries if that is more.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.batching import Batching
from headway.core.engine.rate_limits import Entrance

_MOST_OUTDATED = 100

_WAITING = AttemptState.WAITING

R = TypeVar("R")


class WaitingHeads(Generic[R]):
    """The waiting heads, which are released to the ready queues of their levels.

    Args:
        levels: The entrances to the ready queues, by level.
        orders: Ascending numbers that make entries with equal times comparable.
    """

    def __init__(self, levels: Sequence[Entrance[R]], orders: Iterator[int]) -> None:
        self._levels = levels
        self._orders = orders
        # A heap, ordered by the time until which each head waits.
        self.entries: list[tuple[float, int, Attempt[R]]] = []
        self._outdated = 0  # an upper bound on the number of outdated entries
        self.batching: Batching[R] | None = None

    def take_in(self, heads: Sequence[Attempt[R]], attempts: Sequence[Attempt[R]], now: float) -> None:
        """Add received records, and make the heads among them wait for their batches to fill."""
        assert self.batching is not None  # noqa: S101 - for the type checker
        behind = set(attempts).difference(heads)
        # The heads come last: a new head also counts the records behind it, so adding these afterwards would count them
        # twice.
        for attempt in filter(behind.__contains__, attempts):
            self._release_full(self.batching.join(attempt))
        for head in heads:
            self.place(head, now)

    def place(self, head: Attempt[R], now: float) -> None:
        """Release a head to its ready queue, or make it wait for its time or its batch."""
        if self.batching and (until := self.batching.until(head)) > now:
            head.not_before = until
            self._put_off(until, head)
            self._release_full(self.batching.wait(head))
            return
        if head.not_before > now:
            self._put_off(head.not_before, head)
        else:
            self._levels[head.assignment.level].release(head)

    def release_due(self, now: float) -> None:
        """Release the heads whose time has come."""
        while self.entries and self.entries[0][0] <= now:
            at, _, head = heappop(self.entries)
            if head.not_before == at:
                if self.batching:
                    self.batching.leave(head)
                self._levels[head.assignment.level].release(head)

    def stop_batching(self) -> None:
        """Release all heads that wait for their batches to fill, and stop waiting for batches."""
        if self.batching:
            waiting = self.batching.take_all()
            self.batching = None
            self._release_full(waiting)

    def end_wait(self, head: Attempt[R], now: float) -> None:
        """Let a head run that waits for its time."""
        if self.batching:
            self.batching.leave(head)
        head.not_before = 0.0  # makes the head's entry outdated
        self._outdated += 1
        self.place(head, now)
        self._forget_outdated()

    def next_time(self) -> float | None:
        """Return when the first waiting head may run, or None if no head waits for a time."""
        return self.entries[0][0] if self.entries and self.entries[0][0] < inf else None

    def waiting(self) -> list[Attempt[R]]:
        """Return the heads that wait, in no particular order."""
        return [head for at, _, head in self.entries if head.not_before == at]

    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        """Remove and return the waiting heads of an assignment."""
        dropped = [head for at, _, head in self.entries if head.assignment is assignment and head.not_before == at]
        self._keep(lambda head: head.assignment is not assignment)
        if self.batching:
            self.batching.drop(assignment)
        return dropped

    def _put_off(self, until: float, head: Attempt[R]) -> None:
        head.state = _WAITING
        # The entry gets a new number instead of the attempt's `order`, because an earlier attempt at the same record
        # has the same `order` and might have an entry with the same time.
        heappush(self.entries, (until, next(self._orders), head))

    def _release_full(self, heads: Iterable[Attempt[R]]) -> None:
        for head in heads:
            head.not_before = 0.0  # makes the head's entry outdated
            self._outdated += 1
            self._levels[head.assignment.level].release(head)
        self._forget_outdated()

    def _forget_outdated(self) -> None:
        if self._outdated > max(_MOST_OUTDATED, len(self.entries) // 2):
            self._keep(lambda _: True)

    def _keep(self, wanted: Callable[[Attempt[R]], bool]) -> None:
        self.entries = [entry for entry in self.entries if entry[2].not_before == entry[0] and wanted(entry[2])]
        heapify(self.entries)
        self._outdated = 0
