"""The policies that decide which level hands over next, when each turn moves another number of bytes.

Invariants: only a level that waits is picked, and one is picked whenever any waits. Under `fair`, levels that always
wait get their shares of the bytes, to within one turn. Under `strict`, the highest level that waits is picked, unless
another has waited too long.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from headway.core.levels.capacity import Distributor, distribute, strides
from headway.core.levels.policies import PolicyName, check_policy, highest_and_overdue

_PARTS = 1_000  # the capacity that a distributor splits


class Turns(Protocol):
    """The turns of the levels."""

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level whose turn it is, given since when each waits; None if none waits."""
        ...

    def charge(self, level: int, size: int) -> None:
        """Note that a level's turn is over, and that it moved this many bytes."""
        ...


class TurnPolicy(Turns, Protocol):
    """The way in which the levels take turns."""

    def under_quota(self, moved: Sequence[int], now: float) -> Turns:
        """Return the turns while a broker throttles, given the bytes that each level has moved in the last seconds."""
        ...


class FairTurns:
    """The policy that gives each turn to the level furthest behind its share.

    A level that comes back from idleness neither owes nor has saved up. (Start-time fair queueing, Goyal, Vin and Cheng
    1996, in whole numbers.)
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self._strides = strides(shares)
        self._starts = [0] * len(shares)
        self._idle = [True] * len(shares)
        self._virtual_time = 0

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level with the earliest start; of equal ones the highest."""
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
        """Put off the level's next turn by the bytes over its share."""
        self._starts[level] += size * self._strides[level]

    def under_quota(self, moved: Sequence[int], now: float) -> "QuotaTurns":
        """Return turns by the same shares, for which it counts what was moved before."""
        return QuotaTurns(self._strides, moved, now)


class QuotaTurns:
    """The turns under a quota: the level goes first that has moved least of its share in the last half minute.

    A quota is an average over some ten seconds, so what one level has sent is missing for the others afterwards. Under
    `FairTurns` that costs all levels alike. Here a level that used more than its share waits until the others have
    caught up. Bytes count less the older they are, so a level is not shut out for long, and cannot save up for long.
    """

    REMEMBERED = 30.0
    """The seconds after which moved bytes count for 1/e. The levels that a burst held up have only what they do not
    use of the quota to catch up with, which takes them longer than the quota's ten seconds."""

    _DECAYS_EVERY = 1.0

    def __init__(self, strides: Sequence[int], moved: Sequence[int], now: float) -> None:
        self._strides = strides
        self._moved = [float(size) for size in moved]
        self._decayed = now

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the waiting level that has moved least of its share; of equal ones the highest."""
        if now - self._decayed >= self._DECAYS_EVERY:
            kept = math.exp((self._decayed - now) / self.REMEMBERED)
            self._moved = [size * kept for size in self._moved]
            self._decayed = now
        waiting = [level for level, since in enumerate(oldest) if since is not None]
        return min(waiting, key=lambda level: (self._moved[level] * self._strides[level], -level), default=None)

    def charge(self, level: int, size: int) -> None:
        """Count the bytes that a level has moved."""
        self._moved[level] += size


class StrictTurns:
    """The policy that gives each turn to the highest level that waits.

    The level that has waited longest goes first if it has waited more than `max_wait` seconds.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return an overdue level, or the highest."""
        highest, overdue = highest_and_overdue(oldest, now - self._max_wait)
        return highest if overdue is None else overdue

    def charge(self, level: int, size: int) -> None:
        """Do nothing: the bytes that a level has moved play no part."""

    def under_quota(self, moved: Sequence[int], now: float) -> "StrictTurns":
        """Return the same policy: the highest level goes first in any case."""
        return self


def make_turn_policy(
    policy: PolicyName, distributor: Distributor | None, levels: int, *, max_wait: float
) -> TurnPolicy:
    """Return the policy of that name; by default each level has twice the share of the one below.

    Raises `ConfigError` for another name, and for a distributor where shares play no part.
    """
    check_policy(policy, distributor, known=("fair", "strict"))
    if policy == "strict":
        return StrictTurns(max_wait)
    return FairTurns(distribute(distributor, levels, _PARTS) if distributor else [2**i for i in range(levels)])
