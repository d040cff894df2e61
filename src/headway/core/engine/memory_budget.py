"""The memory that one level may use, and the partitions that must wait for it.

Invariants: one half of the budget is split equally over the level's partitions, and each is sure of its part. All else
goes to whichever partition comes first: a flood of all partitions may fill the budget. So the records behind stuck
lanes of some partitions stop only these partitions, and the level holds no more than its budget plus one fetch.
Uncommitted outputs count too, with their records: while they alone fill the budget, nothing more of the level starts.
"""

from collections.abc import Iterable

_EASED = 0.75  # a paused partition resumes at this part of its mark: each stop and start costs a refetch

# The most records to fetch before their size is known. Nothing else bounds that fetch, because librdkafka's queue does
# not count headers. The next fetch follows at once.
_FIRST = 16


class MemoryBudget:
    """The bytes of one level."""

    __slots__ = ("_record_bytes", "_unused_parts", "limit", "of_outputs", "partitions", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.of_outputs = 0  # the part of `used` that outputs take
        self.partitions = 0
        self._record_bytes = max(1, limit // _FIRST)
        self._unused_parts: float | None = None  # bytes, as far as they were looked at; None if all parts may be unused

    def fill(self, size: int, records: int) -> None:
        """Note that records came in."""
        self.used += size
        self._record_bytes = max(1, size // records)

    def wants_commit(self) -> bool:
        """Return whether uncommitted outputs should be committed early: partitions may be paused for their size."""
        return self.of_outputs * 4 >= self.limit

    def is_full_of_outputs(self) -> bool:
        """Return whether uncommitted outputs leave no room for more outputs."""
        return self.of_outputs >= self.limit

    def look_at_parts(self, used_by_each: Iterable[int]) -> None:
        """Note what the partitions use of their own parts; the rest is kept for them.

        While half of the budget is free that does not matter, and the parts of all partitions are kept whole.
        """
        own, is_tight = self._own_part(), self.used > self.limit / 2
        self._unused_parts = sum(own - used for used in used_by_each if used < own) if is_tight else None

    def is_full_for(self, used_by_one: int, is_paused: bool) -> bool:
        """Return whether a partition that uses this many bytes must take no more; a paused one resumes a little lower.

        >>> room = MemoryBudget(1000)
        >>> room.partitions, room.used = 5, 601
        >>> room.is_full_for(100, is_paused=False), room.is_full_for(101, is_paused=False)
        (False, True)
        >>> room.look_at_parts([101, 125, 125, 125, 125])
        >>> room.is_full_for(101, is_paused=False)
        False
        """
        own = self._own_part()
        kept = max(0, self.partitions - 1) * own if self._unused_parts is None else self._unused_parts
        scale = _EASED if is_paused else 1
        return used_by_one > own * scale and self.used + kept * scale > self.limit * scale

    def _own_part(self) -> float:
        return self.limit / 2 / max(1, self.partitions)

    def records_left(self) -> int:
        """Return how many more records fit, if as large as the last ones; at least one, for a partition's own part."""
        return max(1, (self.limit - self.used) // self._record_bytes)
