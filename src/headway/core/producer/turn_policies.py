"""The policies that decide which level hands over next. A turn can move any number of bytes.

Invariants: a level is picked whenever any level is waiting, and only waiting levels are picked. Under `fair`, levels
that always wait get their shares of the bytes, to within one turn. Under `strict`, the highest waiting level is picked,
unless another level has waited too long.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from headway.core.levels.capacity import Distributor, distribute, strides
from headway.core.levels.policies import PolicyName, check_policy, highest_and_overdue

_CAPACITY = 1_000  # the capacity that a distributor splits


class Turns(Protocol):
    """Decides the turns of the levels."""

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level whose turn it is, or None. `oldest` has the time since which each level waits, or None."""
        ...

    def charge(self, level: int, size: int) -> None:
        """Record that a level moved this many bytes in its turn."""
        ...


class TurnPolicy(Turns, Protocol):
    """A policy for the turns of the levels."""

    def under_quota(self, moved: Sequence[int], now: float) -> Turns:
        """Return the policy while a broker throttles; `moved` has the bytes that each level moved recently."""
        ...


class FairTurns:
    """The policy that gives each turn to the level furthest behind its share.

    A level that was idle has neither debts nor savings. (Start-time fair queueing, Goyal, Vin and Cheng 1996, in whole
    numbers.)
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self._strides = strides(shares)
        self._starts = [0] * len(shares)
        self._idle = [True] * len(shares)
        self._virtual_time = 0

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level with the earliest start time; the highest one among equals."""
        chosen, starts = None, self._starts
        for level, since in enumerate(oldest):
            if since is None:
                self._idle[level] = True
                continue
            if self._idle[level]:
                self._idle[level] = False
                starts[level] = max(starts[level], self._virtual_time)
            if chosen is None or starts[level] <= starts[chosen]:
                chosen = level
        if chosen is not None:
            self._virtual_time = max(self._virtual_time, starts[chosen])
        return chosen

    def charge(self, level: int, size: int) -> None:
        """Postpone the level's start time by the bytes, divided by its share."""
        self._starts[level] += size * self._strides[level]

    def under_quota(self, moved: Sequence[int], now: float) -> "QuotaTurns":
        """Return a policy with the same shares, which also counts the bytes that were moved before."""
        return QuotaTurns(self._strides, moved, now)


class QuotaTurns:
    """The policy under a quota: the level that has moved least of its share in the last half minute goes first.

    A quota averages over about ten seconds, so the bytes that one level has sent are not available to the others
    afterwards. `FairTurns` would charge that to all levels alike. Here a level that used more than its share waits
    until the others have caught up. Older bytes count less, so a level is neither shut out for long, nor can it save up
    for long.
    """

    REMEMBERED = 30.0
    """The seconds after which moved bytes count for 1/e. Levels that a burst held up need longer than the quota's ten
    seconds to catch up, because they can only use what is left of the quota."""

    _DECAY_INTERVAL = 1.0

    def __init__(self, strides: Sequence[int], moved: Sequence[int], now: float) -> None:
        self._strides = strides
        self._moved = [float(size) for size in moved]
        self._decayed = now

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the waiting level that has moved least of its share; the highest one among equals."""
        if now - self._decayed >= self._DECAY_INTERVAL:
            kept = math.exp((self._decayed - now) / self.REMEMBERED)
            self._moved = [size * kept for size in self._moved]
            self._decayed = now
        waiting = [level for level, since in enumerate(oldest) if since is not None]
        return min(waiting, key=lambda level: (self._moved[level] * self._strides[level], -level), default=None)

    def charge(self, level: int, size: int) -> None:
        """Count the bytes that a level has moved."""
        self._moved[level] += size


class StrictTurns:
    """The policy that gives each turn to the highest waiting level.

    If a level has waited for more than `max_wait` seconds, the one that has waited longest goes first.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level that is overdue for longest, or else the highest waiting level."""
        highest, overdue = highest_and_overdue(oldest, now - self._max_wait)
        return highest if overdue is None else overdue

    def charge(self, level: int, size: int) -> None:
        """Do nothing, because this policy ignores the bytes."""

    def under_quota(self, moved: Sequence[int], now: float) -> "StrictTurns":
        """Return this policy, which ignores quotas."""
        return self


def make_turn_policy(
    policy: PolicyName, distributor: Distributor | None, levels: int, *, max_wait: float
) -> TurnPolicy:
    """Return the policy with this name. By default each level has twice the share of the level below.

    Raises `ConfigError` for an unknown name, and for a distributor if the policy has no shares.
    """
    check_policy(policy, distributor, known=("fair", "strict"))
    if policy == "strict":
        return StrictTurns(max_wait)
    return FairTurns(distribute(distributor, levels, _CAPACITY) if distributor else [2**i for i in range(levels)])
