"""The policies that decide which level hands over records next. A turn can hand over any number of bytes.

Invariants: if any level has waiting records, such a level is picked. Under `fair`, levels that always have waiting
records get their shares of the bytes, to within one turn. Under `strict`, the highest level with waiting records is
picked, unless another level has waited too long.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from headway.core.levels.capacity import Distributor, distribute, strides
from headway.core.levels.policies import PolicyName, check_policy

_CAPACITY = 1_000  # the capacity for the distributor to divide; only the proportions of the shares matter


class Turns(Protocol):
    """Decides the turns of the levels."""

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level whose turn it is, or None if no level has waiting records.

        For each level, `oldest` has the time when the level's next record started to wait, or None if the level has no
        waiting records.
        """
        ...

    def charge(self, level: int, size: int) -> None:
        """Record that this many bytes of a level were handed over in the level's turn."""
        ...


class TurnPolicy(Turns, Protocol):
    """A policy for the turns of the levels."""

    def under_quota(self, moved: Sequence[int], now: float) -> Turns:
        """Return the policy to use while a broker throttles the client.

        `moved` has the bytes that each level delivered recently.
        """
        ...


class FairTurns:
    """The policy that gives each turn to the level that is furthest behind its share.

    Idle time earns no credit. (Start-time fair queueing, Goyal, Vin and Cheng 1996, in whole numbers.)
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self._strides = strides(shares)
        self._starts = [0] * len(shares)
        self._idle = [True] * len(shares)
        self._virtual_time = 0

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the waiting level with the earliest start time. On a tie, the highest of these levels is returned."""
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
        """Move the start time of a level forward by the number of bytes, divided by the level's share."""
        self._starts[level] += size * self._strides[level]

    def under_quota(self, moved: Sequence[int], now: float) -> "QuotaTurns":
        """Return a policy with the same shares that also counts the bytes which were delivered recently."""
        return QuotaTurns(self._strides, moved, now)


class QuotaTurns:
    """The policy under a quota: the level that has recently sent the least in proportion to its share goes first.

    A quota is averaged over about ten seconds. So if one level has sent a burst, less quota is left for all levels
    afterwards, and with `FairTurns` all levels would suffer equally. With this policy, a level that has used more than
    its share waits until the other levels have caught up. Older bytes count less, so a level is not shut out for long,
    and credit that it has saved up does not last long.
    """

    REMEMBERED = 30.0
    """How long it takes until the weight of sent bytes has decreased to 1/e, in seconds.

    After a burst of one level, the other levels need more than the quota's ten seconds to catch up, because they can
    use only the part of the quota that the burst has left.
    """

    _DECAY_INTERVAL = 1.0

    def __init__(self, strides: Sequence[int], moved: Sequence[int], now: float) -> None:
        self._strides = strides
        self._moved = [float(size) for size in moved]
        self._decayed = now

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the waiting level that has sent the least in proportion to its share.

        On a tie, the highest is returned.
        """
        if now - self._decayed >= self._DECAY_INTERVAL:
            kept = math.exp((self._decayed - now) / self.REMEMBERED)
            self._moved = [size * kept for size in self._moved]
            self._decayed = now
        waiting = [level for level, since in enumerate(oldest) if since is not None]
        return min(waiting, key=lambda level: (self._moved[level] * self._strides[level], -level), default=None)

    def charge(self, level: int, size: int) -> None:
        """Count bytes that were handed over for a level."""
        self._moved[level] += size


class StrictTurns:
    """The policy that gives each turn to the highest level with waiting records.

    If a level has waited longer than `max_wait` seconds, the level that has waited longest goes first.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the overdue level that has waited longest, or the highest waiting level if no level is overdue."""
        highest, overdue, before = None, None, now - self._max_wait
        for level, since in enumerate(oldest):
            if since is not None:
                highest = level
                if since < before:
                    overdue, before = level, since
        return highest if overdue is None else overdue

    def charge(self, level: int, size: int) -> None:
        """Do nothing, because this policy does not depend on bytes."""

    def under_quota(self, moved: Sequence[int], now: float) -> "StrictTurns":
        """Return this policy, which does not depend on quotas."""
        return self


def make_turn_policy(
    policy: PolicyName, distributor: Distributor | None, levels: int, *, max_wait: float
) -> TurnPolicy:
    """Return the policy with this name. By default, each level has twice the share of the level below it.

    Raises `ConfigError` if there is no policy with this name, or if a distributor is given with `strict`.
    """
    check_policy(policy, distributor, known=("fair", "strict"))
    if policy == "strict":
        return StrictTurns(max_wait)
    return FairTurns(distribute(distributor, levels, _CAPACITY) if distributor else [2**i for i in range(levels)])
