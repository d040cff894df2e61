"""Which level gets the next free slot.

A policy is asked once per slot, whenever one is free and works are ready, so that nothing is decided before its time: a
record of a high level waits for one free slot, never for a batch.

Invariants: only a level with ready work is picked; `fair` and `strict` pick whenever there is one (they conserve
work), `capacity_burst` may keep a slot free for a level above; under `strict` and `fair` no level waits for ever.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from headway.core.engine.ready_queue import ReadyQueue
from headway.core.levels.capacity import BurstWindow, Distributor, burst_shares, distribute, exponential
from headway.core.levels.policies import Fair, PolicyName
from headway.errors import ConfigError

Levels = Sequence[ReadyQueue[Any]]

_OVERDUE_EACH = 4


class SlotPolicy(Protocol):
    """How the levels share the slots."""

    def pick(self, levels: Levels, now: float) -> int | None:
        """The level of the next free slot; None if it shall stay free."""
        ...

    def next_change(self) -> float | None:
        """When it may pick otherwise though nothing else has happened."""
        ...


class FairSlots:
    """Each slot to the ready level with the earliest virtual deadline."""

    def __init__(self, shares: Sequence[int]) -> None:
        self._fair = Fair(shares)

    def pick(self, levels: Levels, now: float) -> int | None:
        """The level that is furthest behind its share."""
        return self._fair.pick_one([level.ready for level in levels])

    def next_change(self) -> None:
        """Time alone changes nothing."""


class StrictSlots:
    """The highest ready level; but one slot of four to that whose oldest record has waited longest, if over `max_wait`.

    No more than that: behind a backlog, or after failures, every record of a low level has waited so long.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait
        self._to_the_highest = _OVERDUE_EACH

    def pick(self, levels: Levels, now: float) -> int | None:
        """The highest level, or in its turn an overdue one."""
        highest, longest, since = None, None, now - self._max_wait
        for index, level in enumerate(levels):
            oldest = level.oldest()
            if oldest is not None:
                highest = index
                if oldest < since:
                    longest, since = index, oldest
        if longest is None or longest == highest or self._to_the_highest < _OVERDUE_EACH - 1:
            self._to_the_highest += 1
            return highest
        self._to_the_highest = 0
        return longest

    def next_change(self) -> None:
        """A free slot never waits, so time alone changes nothing."""


class BurstSlots:
    """The reference client's shares, of slots: a level runs as many as its share, one at a time also bursts.

    What the reference looks at with each poll, how much every level holds, is looked at `interval` seconds apart.
    """

    def __init__(self, shares: Sequence[int], window_size: int = 6, threshold: int = 4, interval: float = 0.1) -> None:
        self._shares = shares
        self._windows = [BurstWindow(window_size, threshold) for _ in shares]
        self._now_shares = list(shares)
        self._interval = interval
        self._look_at: float | None = None
        self._refused = False

    def pick(self, levels: Levels, now: float) -> int | None:
        """The highest level that is ready and below its share of this moment."""
        if self._look_at is None or now >= self._look_at:
            self._look(levels, now)
        self._refused = False
        for index in range(len(levels) - 1, -1, -1):
            if levels[index].ready and levels[index].slots < self._now_shares[index]:
                return index
        self._refused = any(level.ready for level in levels)
        return None

    def next_change(self) -> float | None:
        """The next look, if a ready level was refused."""
        return self._look_at if self._refused else None

    def _look(self, levels: Levels, now: float) -> None:
        self._look_at = now + self._interval
        for window, level in zip(self._windows, levels, strict=True):
            window.add(level.ready + level.slots)
        self._now_shares = burst_shares(self._shares, self._windows)


def make_slots(
    policy: PolicyName, distributor: Distributor | None, levels: int, slots: int, *, max_wait: float
) -> SlotPolicy:
    """The policy of that name; by default each level has twice the share of the one below.

    Raises `ConfigError` for another name, for shares that the slots do not allow, and for a distributor where shares
    play no part.
    """
    if policy == "strict":
        if distributor is not None:
            raise ConfigError("The policy strict takes no distributor: the highest level may use every slot.")
        return StrictSlots(max_wait)
    if policy == "fair":
        # By default weights, and no shares: few slots can be shared by many levels, one after the other.
        shares = distribute(distributor, levels, slots) if distributor else [2**level for level in range(levels)]
        return FairSlots(shares)
    if policy == "capacity_burst":
        return BurstSlots(distribute(distributor or exponential, levels, slots))
    raise ConfigError(f"The policy {policy!r} is not one of capacity_burst, fair and strict.")
