"""Chooses the attempts that get the next free slots: their level, and whether a record that failed before may be next.

Invariants: only a level with ready records is picked, and never a level whose outputs fill its memory. While records
that never failed are waiting, records that failed before use at most their share of the slots. If the share is less
than one slot, it limits how often records that failed before are started; if there is only one slot, they would
otherwise take it each time.
"""

import math
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from headway.core.engine.attempt import Attempt
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.slot_policies import SlotPolicy

R = TypeVar("R")


class SlotCount(Protocol):
    """The dispatch, whose gates can change the number of slots at any time."""

    def usable_slots(self) -> int:
        """Return the number of all slots that can be used, taken or free."""


class NextSlots(Generic[R]):
    """Chooses the attempts to run next.

    Args:
        levels: The ready attempts of each level.
        policy: Decides how the levels share the slots.
        retry_share: The fraction of the slots that records which failed before get while other records wait.
        full_of_outputs: The levels that must not start attempts now. The caller keeps this collection up to date.

    Attributes:
        slot_count: Counts all slots, both taken and free. If this is None, the limit in each call must be the number of
            all free slots.
    """

    def __init__(
        self,
        levels: Sequence[ReadyQueue[R]],
        policy: SlotPolicy,
        retry_share: float,
        full_of_outputs: Collection[int],
    ) -> None:
        self._levels = levels
        self._policy = policy
        self._retry_share = retry_share
        self._full_of_outputs = full_of_outputs
        self.slot_count: SlotCount | None = None
        self._fresh_starts = math.inf  # the number of starts since a record that had failed before was last started

    def take(self, limit: int, now: float) -> list[Attempt[R]]:
        """Start up to `limit` attempts, each in a slot of its own, and return them."""
        levels = self._levels
        for level in levels:  # a loop and not `any`, which takes three times as long; this code runs for each slot
            if level.failed.ready:
                return self._take_with_care(limit, now)
        if self._full_of_outputs:
            return self._take_with_care(limit, now)
        if len(levels) == 1:
            attempts = levels[0].take_fresh(limit, now)
        else:
            attempts = []
            pick = self._policy.pick
            while len(attempts) < limit and (picked := pick(levels, now)) is not None:
                attempts.append(levels[picked].take(now, only_fresh=True))
        self._fresh_starts += len(attempts)
        return attempts

    def _take_with_care(self, limit: int, now: float) -> list[Attempt[R]]:
        attempts: list[Attempt[R]] = []
        while len(attempts) < limit and (picked := self._pick(limit - len(attempts), now)):
            level, only_fresh = picked
            attempts.append(level.take(now, only_fresh))
            self._note_start(attempts[-1])
        return attempts

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Attempt[R]]:
        """Start a batch in one slot and return its attempts, as `ReadyQueue.take_batch` does.

        The list is empty if no attempt may start.
        """
        if picked := self._pick(1, now):
            level, only_fresh = picked
            attempts = level.take_batch(max_size, now, only_fresh, of_one_partition)
            self._note_start(attempts[0])
            return attempts
        return []

    def _note_start(self, first: Attempt[R]) -> None:
        self._fresh_starts = 0 if first.failure else self._fresh_starts + 1

    def next_change(self) -> float | None:
        """Return when the choice can change without another call, or None if that cannot happen."""
        return self._policy.next_change()

    def _pick(self, free: int, now: float) -> tuple[ReadyQueue[R], bool] | None:
        """Return the level that gets the next slot, and whether only records that never failed may take this slot."""
        levels = self._levels
        if full := self._full_of_outputs:
            levels = [level.without_ready() if index in full else level for index, level in enumerate(levels)]
        if only_fresh := self._holds_failed_back(levels, free):
            levels = [level.without_failed() for level in levels]
        picked = (0 if levels[0].ready else None) if len(levels) == 1 else self._policy.pick(levels, now)
        return None if picked is None else (self._levels[picked], only_fresh)

    def _holds_failed_back(self, levels: Sequence[ReadyQueue[R]], free: int) -> bool:
        """Return whether records that failed before must wait, because they have used up their share of the slots."""
        if not any(level.failed.ready for level in levels) or not any(level.fresh.ready for level in levels):
            return False
        slots = self.slot_count.usable_slots() if self.slot_count else free + sum(each.slots for each in self._levels)
        share = self._retry_share * slots
        if share < 1 and self._retry_share * (1 + self._fresh_starts) < 1:
            return True
        return sum(level.retrying for level in self._levels) >= max(1, share)
