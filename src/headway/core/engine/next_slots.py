"""The works that get the next free slots: of which level, and whether they may have failed before.

Invariants: only a level with ready works is picked, and none whose outputs fill its memory. While works that never
failed wait, failed ones start only in their share of the slots; else in all of them.
"""

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.slot_policies import SlotPolicy
from headway.core.engine.work import Work

R = TypeVar("R")


class NextSlots(Generic[R]):
    """The choice of the works to run next.

    Args:
        levels: The ready works of each level.
        policy: The way in which the levels share the slots.
        retry_share: The part of the slots for works that failed before, while others wait.
        full_of_outputs: The levels of which nothing may start for now; the owner changes it.
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

    def take(self, limit: int, now: float) -> list[Work[R]]:
        """Return up to `limit` works, each for a slot of its own."""
        if len(self._levels) == 1 and not self._levels[0].failed.ready and not self._full_of_outputs:
            return self._levels[0].take_fresh(limit)
        works: list[Work[R]] = []
        while len(works) < limit and (picked := self._pick(now)):
            level, only_fresh = picked
            works.append(level.take(only_fresh))
        return works

    def take_batch(self, max_size: int, now: float) -> list[Work[R]]:
        """Return the works for one slot, as `ReadyQueue.take_batch` does; an empty list if none may run."""
        if picked := self._pick(now):
            level, only_fresh = picked
            return level.take_batch(max_size, now, only_fresh)
        return []

    def next_change(self) -> float | None:
        """Return when the policy may pick otherwise even if nothing else happens."""
        return self._policy.next_change()

    def _pick(self, now: float) -> tuple[ReadyQueue[R], bool] | None:
        """Return the level of the next slot, and whether it is only for a work that never failed."""
        levels = self._levels
        if full := self._full_of_outputs:
            levels = [level.without_ready() if index in full else level for index, level in enumerate(levels)]
        if only_fresh := self._holds_failed_back(levels):
            levels = [level.without_failed() for level in levels]
        picked = (0 if levels[0].ready else None) if len(levels) == 1 else self._policy.pick(levels, now)
        return None if picked is None else (self._levels[picked], only_fresh)

    def _holds_failed_back(self, levels: Sequence[ReadyQueue[R]]) -> bool:
        """Return whether works that failed before have their share of the slots, and others wait."""
        if not any(level.failed.ready for level in levels) or not any(level.fresh.ready for level in levels):
            return False
        slots = 1 + sum(level.slots for level in self._levels)
        return sum(level.retrying for level in self._levels) >= max(1, self._retry_share * slots)
