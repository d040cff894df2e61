"""The memory budget of one level, which decides which of the level's partitions must be paused.

Invariants: one half of the budget is reserved for the level's partitions, in equal shares. The other half goes to
whichever partitions need it first. So records that wait behind a stuck lane pause only their own partition, and the
level never holds more than its budget and one fetch. Uncommitted outputs and their records count too: while these
outputs and records alone fill the budget, the level starts no attempts.
"""

from collections.abc import Iterable

# A paused partition resumes when it uses less than this fraction of its limit. The fraction is below 1 to keep pauses
# rare, because records must be fetched a second time after each pause.
_EASED = 0.75

# The maximum number of records to fetch while the usual size of a record is not known. Nothing else bounds the size of
# such a fetch, because librdkafka's queue does not count headers. The small number costs little, because the next fetch
# follows at once.
_FIRST = 16


class MemoryBudget:
    """The memory budget of one level, in bytes, and its use."""

    __slots__ = ("_record_bytes", "_unused_shares", "limit", "of_outputs", "partitions", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.of_outputs = 0  # how many of the used bytes are taken by outputs and their records
        self.partitions = 0
        self._record_bytes = max(1, limit // _FIRST)
        # The reserved bytes that partitions do not use; None if all reserved bytes are assumed to be unused.
        self._unused_shares: float | None = None

    def fill(self, size: int, records: int) -> None:
        """Record that records of this total size were received."""
        self.used += size
        self._record_bytes = max(1, size // records)

    def wants_commit(self) -> bool:
        """Return whether uncommitted outputs should be committed early, before they cause partitions to be paused."""
        return self.of_outputs * 4 >= self.limit

    def is_full_of_outputs(self) -> bool:
        """Return whether uncommitted outputs fill the budget."""
        return self.of_outputs >= self.limit

    def note_shares(self, used_by_each: Iterable[int]) -> None:
        """Compute how many of the reserved bytes are unused from the number of bytes that each partition uses.

        While half of the budget is free, the exact number makes no difference, so all reserved bytes are assumed to be
        unused.
        """
        own, is_tight = self._own_share(), self.used > self.limit / 2
        self._unused_shares = sum(own - used for used in used_by_each if used < own) if is_tight else None

    def is_full_for(self, used_by_one: int, is_paused: bool) -> bool:
        """Return whether a partition that uses this many bytes must be paused, or stay paused.

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
        """Return how many more records fit into the budget, estimated from the sizes of the last records.

        The result is at least 1, because a partition may still use its reserved share.
        """
        return max(1, (self.limit - self.used) // self._record_bytes)
