"""The policies that decide which level gets the next free slot.

A policy is called once for each free slot while records are ready. The policy decides nothing ahead of time, so a
record of a high level waits only until one slot is free, and never for several slots.

Invariants: a policy picks only levels with ready records. `fair` and `strict` always pick a level if there is one; they
are work-conserving. `capacity_burst` can keep a slot free for a higher level. Under `strict` and `fair`, no level waits
forever.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from headway.core.engine.ready_queue import ReadyQueue
from headway.core.levels.capacity import BurstWindow, Distributor, burst_shares, distribute, exponential_shares
from headway.core.levels.fair import Fair
from headway.core.levels.policies import PolicyName, check_policy

Levels = Sequence[ReadyQueue[Any]]

_OVERDUE_EVERY = 4  # one in this many slots can go to an overdue level


class SlotPolicy(Protocol):
    """Decides how the levels share the slots.

    `shares` has the shares of the levels while all of them have records, or is None if the policy has no shares.
    """

    shares: Sequence[int] | None

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the level that gets the next free slot, or None if the slot must stay free."""
        ...

    def next_change(self) -> float | None:
        """Return when the policy's choice can change without another call, or None if that cannot happen."""
        ...


class FairSlots:
    """The policy that gives each slot to the ready level with the earliest virtual deadline.

    As a result, levels get slots in proportion to their shares.
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares: Sequence[int] | None = shares
        self._fair = Fair(shares)

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the ready level that is furthest behind its share."""
        # The sum is computed here because this code runs for each slot, and the property `ready` takes twice as long.
        return self._fair.pick_one([level.fresh.ready + level.failed.ready for level in levels])

    def next_change(self) -> None:
        """Return None, because the choice does not depend on the time."""


class StrictSlots:
    """The policy that gives slots to the highest ready level, and one in four slots to an overdue level.

    A level is overdue if its oldest record has waited longer than `max_wait` seconds. If several levels are overdue,
    the level with the oldest record is picked. Overdue levels get at most one in four slots, because all records of a
    low level are overdue when there is a backlog or after failures.
    """

    def __init__(self, max_wait: float) -> None:
        self.shares: Sequence[int] | None = None
        self._max_wait = max_wait
        self._since_overdue = _OVERDUE_EVERY  # the number of slots since a slot went to an overdue level

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the highest ready level, or for one in four slots an overdue level."""
        highest = _highest_ready(levels)
        overdue = None
        if highest and self._since_overdue >= _OVERDUE_EVERY - 1:
            # The oldest record of the highest level is rarely needed. It must be searched for after each slot that this
            # level takes, but the lower levels remember theirs.
            overdue = self._overdue(levels, highest, now)
            if overdue is not None:
                overdue = self._overdue(levels, highest + 1, now)
        if overdue is None or overdue == highest:
            self._since_overdue += 1
            return highest
        self._since_overdue = 0
        return overdue

    def _overdue(self, levels: Levels, count: int, now: float) -> int | None:
        """Return which of the lowest `count` levels has waited longest, or None if none of them is overdue."""
        overdue, before = None, now - self._max_wait
        for index in range(count):
            since = levels[index].oldest()
            if since is not None and since < before:
                overdue, before = index, since
        return overdue

    def next_change(self) -> None:
        """Return None, because a ready level always gets the slot, so no choice has to be repeated later."""


def _highest_ready(levels: Levels) -> int | None:
    for index in range(len(levels) - 1, -1, -1):
        if levels[index].fresh.ready or levels[index].failed.ready:
            return index
    return None


class BurstSlots:
    """Divides slots among levels by the policy of the Java priority client.

    Each level may take slots up to its share. One level at a time can burst: it also gets the slots that the other
    levels leave unused. The Java client updates the shares with each poll; this policy updates them every `interval`
    seconds.
    """

    def __init__(self, shares: Sequence[int], window_size: int = 6, threshold: int = 4, interval: float = 0.1) -> None:
        self.shares: Sequence[int] | None = shares
        self._base_shares = shares
        self._windows = [BurstWindow(window_size, threshold) for _ in shares]
        self._present_shares = list(shares)
        self._interval = interval
        self._update_at: float | None = None
        self._refused = False

    def pick(self, levels: Levels, now: float) -> int | None:
        """Return the highest ready level that has taken fewer slots than its present share."""
        if self._update_at is None or now >= self._update_at:
            self._update_shares(levels, now)
        self._refused = False
        for index in range(len(levels) - 1, -1, -1):
            if levels[index].ready and levels[index].slots < self._present_shares[index]:
                return index
        self._refused = any(level.ready for level in levels)
        return None

    def next_change(self) -> float | None:
        """Return when the shares are next updated.

        Returns None unless the last `pick` turned ready levels away because they had used up their shares.
        """
        return self._update_at if self._refused else None

    def _update_shares(self, levels: Levels, now: float) -> None:
        self._update_at = now + self._interval
        for window, level in zip(self._windows, levels, strict=True):
            window.add(level.ready + level.slots)
        self._present_shares = burst_shares(self._base_shares, self._windows)


def make_slots(
    policy: PolicyName, distributor: Distributor | None, levels: int, slots: int, *, max_wait: float
) -> SlotPolicy:
    """Return the policy with this name. By default, each level has twice the share of the level below it.

    Raises `ConfigError` if there is no policy with this name, if the distributor cannot divide the slots, or if a
    distributor is given with `strict`.
    """
    check_policy(policy, distributor)
    if policy == "strict":
        return StrictSlots(max_wait)
    if policy == "fair":
        # The default shares are weights and not numbers of slots, so that many levels can take turns even if there are
        # only a few slots.
        return FairSlots(distribute(distributor, levels, slots) if distributor else [2**i for i in range(levels)])
    return BurstSlots(distribute(distributor or exponential_shares, levels, slots))
