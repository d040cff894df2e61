"""The memory budget of one level, and which of its partitions must be paused.

Invariants: one half of the budget is reserved, in equal shares, for the level's partitions. The other half goes to
whichever partition needs it first; a flood of all partitions can fill the budget. So records behind stuck lanes stop
only their own partitions, and the level holds no more than its budget plus one fetch. Uncommitted outputs and their
records count too: while they alone fill the budget, no more works of the level start.
"""

from collections.abc import Iterable

_EASED = 0.75  # a paused partition resumes at this fraction of its limit, because each pause costs a refetch

# The most records to fetch before their size is known. Nothing else bounds that fetch, because librdkafka's queue does
# not count headers. The next fetch follows at once.
_FIRST = 16


class MemoryBudget:
    """The bytes of one level."""

    __slots__ = ("_record_bytes", "_unused_shares", "limit", "of_outputs", "partitions", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.of_outputs = 0  # the bytes of `used` that outputs and their records take
        self.partitions = 0
        self._record_bytes = max(1, limit // _FIRST)
        self._unused_shares: float | None = None  # bytes; None if no reserved bytes are known to be in use

    def fill(self, size: int, records: int) -> None:
        """Record that records were received."""
        self.used += size
        self._record_bytes = max(1, size // records)

    def wants_commit(self) -> bool:
        """Return whether uncommitted outputs should be committed early, before they cause partitions to be paused."""
        return self.of_outputs * 4 >= self.limit

    def is_full_of_outputs(self) -> bool:
        """Return whether uncommitted outputs fill the budget."""
        return self.of_outputs >= self.limit

    def note_shares(self, used_by_each: Iterable[int]) -> None:
        """Note how much of their reserved bytes the partitions use. The unused bytes stay reserved.

        While half of the budget is free, this makes no difference, so all shares count as unused.
        """
        own, is_tight = self._own_share(), self.used > self.limit / 2
        self._unused_shares = sum(own - used for used in used_by_each if used < own) if is_tight else None

    def is_full_for(self, used_by_one: int, is_paused: bool) -> bool:
        """Return whether a partition that uses this many bytes must be paused, or if it is paused, must stay so.

        >>> budget = MemoryBudget(1000)
        >>> budget.partitions, budget.used = 5, 601
        >>> budget.is_full_for(100, is_paused=False), budget.is_full_for(101, is_paused=False)
        (False, True)
        >>> budget.note_shares([101, 125, 125, 125, 125])
        >>> budget.is_full_for(101, is_paused=False)
        False
        """
        own = self._own_share()
        kept = max(0, self.partitions - 1) * own if self._unused_shares is None else self._unused_shares
        scale = _EASED if is_paused else 1
        return used_by_one > own * scale and self.used + kept * scale > self.limit * scale

    def _own_share(self) -> float:
        return self.limit / 2 / max(1, self.partitions)

    def records_left(self) -> int:
        """Return how many more records fit, judging by the last ones. At least 1, for a partition's reserved share."""
        return max(1, (self.limit - self.used) // self._record_bytes)
