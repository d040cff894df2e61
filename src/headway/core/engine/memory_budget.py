"""How much one level may hold in memory, and which partitions must wait for it.

Invariants: one half of the room is for whoever comes first; the other half is split equally over the level's
partitions and each is sure of its part. So the records behind stuck lanes of some partitions stop only these, and the
level holds no more than its room plus what one fetch brings. Outputs that are not committed yet count too, with their
records: while they alone fill the room, nothing more of the level starts.
"""

_EASED = 0.75  # of the mark at which it stopped: a partition that stops and starts costs a refetch each time


class MemoryBudget:
    """The bytes of one level."""

    __slots__ = ("_record_bytes", "limit", "of_outputs", "partitions", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.of_outputs = 0  # a part of what is used
        self.partitions = 0
        self._record_bytes = 1

    def fill(self, size: int, records: int) -> None:
        """Records came in."""
        self.used += size
        self._record_bytes = max(1, size // records)

    def wants_commit(self) -> bool:
        """Whether so much waits for a commit that it should come early: partitions may be held for it."""
        return self.of_outputs * 4 >= self.limit

    def is_full_of_outputs(self) -> bool:
        """Whether what waits for a commit leaves no room for more of its kind."""
        return self.of_outputs >= self.limit

    def is_full_for(self, used_by_one: int, held: bool) -> bool:
        """Whether a partition that uses so much must take no more; one that is held goes on a little lower.

        >>> room = Room(1000)
        >>> room.partitions, room.used = 5, 601
        >>> room.is_full_for(100, held=False), room.is_full_for(101, held=False)
        (False, True)
        """
        mark = self.limit / 2 * (_EASED if held else 1)
        own = mark / max(1, self.partitions)
        return used_by_one > own and self.used > mark + own

    def records_left(self) -> int:
        """How many records more, if they are as large as the last ones; at least one, for a partition's own part."""
        return max(1, (self.limit - self.used) // self._record_bytes)
