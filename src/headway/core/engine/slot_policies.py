"""The policies that decide which level gets the next free slot.

A policy is asked once per slot, whenever one is free and works are ready. So nothing is decided before its time: a
record of a high level waits for one free slot, never for a batch.

Invariants: a policy picks only a level with ready work. `fair` and `strict` pick whenever there is one (they conserve
work); `capacity_burst` may keep a slot free for a level above. Under `strict` and `fair` no level waits forever.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from headway.core.engine.ready_queue import ReadyQueue
from headway.core.levels.capacity import BurstWindow, Distributor, burst_shares, distribute, exponential_shares
from headway.core.levels.policies import Fair, PolicyName
from headway.errors import ConfigError

Levels = Sequence[ReadyQueue[Any]]

_OVERDUE_EACH = 4


class SlotPolicy(Protocol):
    """The way in which the levels share the slots."""

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the level of the next free slot; None if it must stay free."""
        ...

    def next_change(self) -> float | None:
        """Return when the policy may pick otherwise even if nothing else happens."""
        ...


class FairSlots:
    """The policy that gives each slot to the ready level with the earliest virtual deadline."""

    def __init__(self, shares: Sequence[int]) -> None:
        self._fair = Fair(shares)

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the level that is furthest behind its share."""
        # Asked for each slot: the property `ready` would take twice as long.
        return self._fair.pick_one([level.fresh.ready + level.failed.ready for level in levels])

    def next_change(self) -> None:
        """Return None: time alone changes nothing."""


class StrictSlots:
    """The policy that gives slots to the highest ready level, and one slot of four to an overdue level.

    A level is overdue if its oldest record has waited longer than `max_wait`; of several, the one that waited longest
    is picked. It gets no more than one slot of four: behind a backlog, or after failures, every record of a low level
    is overdue.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait
        self._to_the_highest = _OVERDUE_EACH

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the highest level, or in its turn an overdue one."""
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
        """Return None: a free slot never waits, so time alone changes nothing."""


class BurstSlots:
    """The Java priority client's shares, applied to slots.

    A level runs as many works as its share; one level at a time also bursts. That client looks at the amount
    that every level holds with each poll; this policy looks every `interval` seconds.
    """

    def __init__(self, shares: Sequence[int], window_size: int = 6, threshold: int = 4, interval: float = 0.1) -> None:
        self._shares = shares
        self._windows = [BurstWindow(window_size, threshold) for _ in shares]
        self._now_shares = list(shares)
        self._interval = interval
        self._look_at: float | None = None
        self._refused = False

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the highest level that is ready and below its current share."""
        if self._look_at is None or now >= self._look_at:
            self._look(levels, now)
        self._refused = False
        for index in range(len(levels) - 1, -1, -1):
            if levels[index].ready and levels[index].slots < self._now_shares[index]:
                return index
        self._refused = any(level.ready for level in levels)
        return None

    def next_change(self) -> float | None:
        """Return the time of the next look, if a ready level was refused."""
        return self._look_at if self._refused else None

    def _look(self, levels: Levels, now: float) -> None:
        self._look_at = now + self._interval
        for window, level in zip(self._windows, levels, strict=True):
            window.add(level.ready + level.slots)
        self._now_shares = burst_shares(self._shares, self._windows)


def make_slots(
    policy: PolicyName, distributor: Distributor | None, levels: int, slots: int, *, max_wait: float
) -> SlotPolicy:
    """Return the policy of that name; by default each level has twice the share of the one below.

    Raises `ConfigError` for another name, for shares that the slots do not allow, and for a distributor where shares
    play no part.
    """
    if policy == "strict":
        if distributor is not None:
            raise ConfigError("The policy strict takes no distributor: the highest level may use every slot.")
        return StrictSlots(max_wait)
    if policy == "fair":
        # By default weights, and no shares: many levels can share few slots in turn.
        shares = distribute(distributor, levels, slots) if distributor else [2**level for level in range(levels)]
        return FairSlots(shares)
    if policy == "capacity_burst":
        return BurstSlots(distribute(distributor or exponential_shares, levels, slots))
    raise ConfigError(f"The policy {policy!r} is not one of capacity_burst, fair and strict.")
