"""A buffer for records that were fetched from one level and have not been taken yet.

Invariants: records are taken in the order in which they arrived. No batch has a later arrival time than the batch after
it. The length is the number of records that `take` can still return.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

R = TypeVar("R")


class LevelBuffer(Generic[R]):
    """A FIFO queue of batches, each with the time at which it was fetched."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, list[R]]] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[R]:
        for _, batch in self._batches:
            yield from batch

    def put(self, records: list[R], now: float) -> None:
        """Append a batch. The buffer keeps the list, so the caller must not change it afterwards."""
        if records:
            self._batches.append((now, records))
            self._length += len(records)

    def take(self, limit: int) -> list[R]:
        """Remove and return up to `limit` records from the front."""
        taken: list[R] = []
        while self._batches and len(taken) < limit:
            arrived, batch = self._batches.popleft()
            room = limit - len(taken)
            if len(batch) > room:
                self._batches.appendleft((arrived, batch[room:]))
                batch = batch[:room]
            taken = taken + batch if taken else batch
        self._length -= len(taken)
        return taken

    def count_from_before(self, time: float) -> int:
        """Return how many of the waiting records were fetched before this time."""
        return sum(len(batch) for arrived, batch in self._batches if arrived < time)

    def oldest(self) -> float | None:
        """Return when the first waiting record was fetched, or None if no record waits."""
        return self._batches[0][0] if self._batches else None

    def discard(self, unwanted: Callable[[R], bool]) -> None:
        """Drop the records for which `unwanted` returns True."""
        kept = [(arrived, [record for record in batch if not unwanted(record)]) for arrived, batch in self._batches]
        self._batches = deque((arrived, batch) for arrived, batch in kept if batch)
        self._length = sum(len(batch) for _, batch in self._batches)
