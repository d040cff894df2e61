"""The complete and incomplete offsets of one partition.

Invariants:
- An incomplete offset is never skipped: `committable` is the lowest incomplete offset, or the next offset to read if no
  offset is incomplete.
- `committable` and the highest complete offset never go back.
- Below `end`, every offset is incomplete, done, or missing because of compaction or transaction markers. From `end` on,
  only the offsets are done that are complete in the starting map, or that `complete_ahead` has marked.
- Offsets arrive in ascending order, so a dict of the incomplete offsets is always sorted, and removing one takes O(1).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from headway.core.offsets.offset_map import OffsetMap, canonical


class Progress:
    """The received offsets of a partition from its committed offset on, complete and incomplete.

    This class is not thread-safe. Only one thread at a time may use a `Progress`, so that `snapshot` is consistent.

    >>> progress = Progress(OffsetMap(5))
    >>> progress.receive([5, 6, 9])
    [5, 6, 9]
    >>> progress.complete(9)
    >>> progress.committable, progress.highest_complete, progress.incomplete_count
    (5, 9, 2)
    >>> progress.snapshot()
    OffsetMap(offset=5, runs=(2, 3))
    """

    __slots__ = ("_done_ahead", "_incomplete", "end", "highest_complete")

    def __init__(self, start: OffsetMap) -> None:
        self._incomplete: dict[int, None] = {}
        self._done_ahead = deque(start.complete)  # the complete ranges that reach beyond `end`
        self.end = start.offset  # the offset after the last received offset, or the consumer's position
        self.highest_complete = start.end - 1  # if no received offset is complete, this is lower than all of them

    @property
    def incomplete_count(self) -> int:
        """The number of received offsets that are not complete."""
        return len(self._incomplete)

    @property
    def committable(self) -> int:
        """The offset to commit: the lowest incomplete offset, or the next offset to read if no offset is incomplete.

        Reading this property is fast, but takes longer after many completions in a row, because a dict has to pass all
        deleted keys to find its first key.
        """
        for lowest in self._incomplete:
            return lowest
        if self._done_ahead and self._done_ahead[0].start <= self.end:
            return self._done_ahead[0].stop
        return self.end

    def receive(self, offsets: Sequence[int]) -> Sequence[int]:
        """Add the offsets of fetched records, and return those that must still be processed.

        Offsets that are missing do not exist. The argument itself is returned, unless the starting map marks some of
        the offsets as done.

        Args:
            offsets: The offsets in ascending order, as Kafka delivers the records of a partition.

        Raises:
            ValueError: The first offset is below `end`. This happens after a seek, or after a reset because the log was
                truncated. This `Progress` then no longer applies, and the caller must create a new one.
        """
        if not offsets:
            return offsets
        if offsets[0] < self.end:
            raise ValueError(
                f"Offset {offsets[0]} was received after offset {self.end - 1}: the consumer's position was moved back."
            )
        last = offsets[-1]
        if self._done_ahead:
            offsets = [offset for offset in offsets if not self._done_before(offset)]
        self._incomplete.update(dict.fromkeys(offsets))
        self.advance(last + 1)
        return offsets

    def advance(self, position: int) -> None:
        """Record that no more offsets below `position` will arrive, because the missing offsets do not exist.

        If the caller passes the consumer's position after each poll, transaction markers at the end of the log do not
        look like lag.
        """
        self.end = max(self.end, position)
        while self._done_ahead and self._done_ahead[0].stop <= self.end:
            self._done_ahead.popleft()

    def complete(self, offset: int) -> None:
        """Mark the record at `offset` as done. Does nothing if the offset is not incomplete."""
        if offset in self._incomplete:
            del self._incomplete[offset]
            if offset > self.highest_complete:  # noqa: PLR1730 - `max` takes as long as the rest of this method
                self.highest_complete = offset

    def complete_ahead(self, offset: int) -> None:
        """Mark an offset as done that is `end` or higher. When its record arrives, `receive` leaves it out."""
        ranges = sorted([*self._done_ahead, range(offset, offset + 1)], key=lambda done: done.start)
        merged = ranges[:1]
        for done in ranges[1:]:
            if done.start <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(merged[-1].stop, done.stop))
            else:
                merged.append(done)
        self._done_ahead = deque(merged)
        self.highest_complete = max(self.highest_complete, offset)

    def is_done(self, offset: int) -> bool:
        """Return whether `offset` needs no more processing.

        The result is False for an offset that has not been received yet, unless the starting map or `complete_ahead`
        marks the offset as done.
        """
        if offset < self.end:
            return offset not in self._incomplete
        return any(offset in done for done in self._done_ahead)

    def unread(self, position: int, log_end: int) -> int:
        """Return how many offsets from `position` to the end of the log are not marked as done by the starting map."""
        begin = max(position, self.end)
        done = sum(max(0, min(each.stop, log_end) - max(each.start, begin)) for each in self._done_ahead)
        return max(0, log_end - begin - done)

    def snapshot(self) -> OffsetMap:
        """Return the offset to commit, and the complete offsets above that offset, as a snapshot of this moment."""
        committable = self.committable
        if committable > self.highest_complete:
            return OffsetMap(committable)
        edges = self._received_edges()  # the first offset of each run; incomplete and complete runs alternate
        if self._done_ahead:
            edges += self._edges_ahead(max(committable, self.end))
        else:
            edges.append(self.highest_complete + 1)
            # Runs of received offsets alternate and are never empty, so they are canonical already.
            return OffsetMap(committable, tuple([stop - start for start, stop in pairwise(edges)]))
        return canonical(committable, [stop - start for start, stop in pairwise(edges)])

    def _received_edges(self) -> list[int]:
        incomplete = list(self._incomplete)
        del incomplete[bisect_left(incomplete, self.highest_complete) :]
        if not incomplete:
            return []
        gaps = [edge for a, b in pairwise(incomplete) if b - a != 1 for edge in (a + 1, b)]
        return [incomplete[0], *gaps, incomplete[-1] + 1]

    def _edges_ahead(self, position: int) -> list[int]:
        ahead = (done for done in self._done_ahead if done.stop > position)
        return [position, *(edge for done in ahead for edge in (max(done.start, position), done.stop))]

    def _done_before(self, offset: int) -> bool:
        """Return whether the starting map marks an offset as done. The offsets must ascend from call to call."""
        while self._done_ahead and self._done_ahead[0].stop <= offset:
            self._done_ahead.popleft()
        return bool(self._done_ahead) and offset in self._done_ahead[0]
