"""The memory that one level may use, and the partitions that must wait for it.

Invariants: one half of the budget goes to whichever partition comes first. The other half is split equally over the
level's partitions, and each is sure of its part. So the records behind stuck lanes of some partitions stop only these
partitions, and the level holds no more than its budget plus one fetch. Uncommitted outputs count too, with their
records: while they alone fill the budget, nothing more of the level starts.
"""

_EASED = 0.75  # a paused partition resumes at this part of its mark: each stop and start costs a refetch


class MemoryBudget:
    """The bytes of one level."""

    __slots__ = ("_record_bytes", "limit", "of_outputs", "partitions", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.of_outputs = 0  # the part of `used` that outputs take
        self.partitions = 0
        self._record_bytes = 1

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

    def is_full_for(self, used_by_one: int, is_paused: bool) -> bool:
        """Return whether a partition that uses so many bytes must take no more; a paused one resumes a little lower.

        >>> room = MemoryBudget(1000)
        >>> room.partitions, room.used = 5, 601
        >>> room.is_full_for(100, is_paused=False), room.is_full_for(101, is_paused=False)
        (False, True)
        """
        mark = self.limit / 2 * (_EASED if is_paused else 1)
        own = mark / max(1, self.partitions)
        return used_by_one > own and self.used > mark + own

    def records_left(self) -> int:
        """Return how many more records fit, if as large as the last ones; at least one, for a partition's own part."""
        return max(1, (self.limit - self.used) // self._record_bytes)
