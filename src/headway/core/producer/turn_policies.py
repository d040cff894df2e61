"""The policies that decide which level hands over next, when each turn moves another number of bytes.

Invariants: only a level that waits is picked, and one is picked whenever any waits. Under `fair`, levels that always
wait get their shares of the bytes, to within one turn. Under `strict`, the highest level that waits is picked, unless
another has waited too long.
"""

from collections.abc import Sequence
from typing import Protocol

from headway.core.levels.capacity import Distributor, distribute, strides
from headway.core.levels.policies import PolicyName
from headway.errors import ConfigError

_PARTS = 1_000  # the capacity that a distributor splits


class TurnPolicy(Protocol):
    """The way in which the levels take turns."""

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return the level whose turn it is, given since when each waits; None if none waits."""
        ...

    def charge(self, level: int, size: int) -> None:
        """Note that a level's turn is over, and that it moved so many bytes."""
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


class StrictTurns:
    """The policy that gives each turn to the highest level that waits.

    The level that has waited longest goes first if it has waited more than `max_wait` seconds.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait

    def pick(self, oldest: Sequence[float | None], now: float) -> int | None:
        """Return an overdue level, or the highest."""
        highest, longest, before = None, None, now - self._max_wait
        for level, since in enumerate(oldest):
            if since is not None:
                highest = level
                if since < before:
                    longest, before = level, since
        return highest if longest is None else longest

    def charge(self, level: int, size: int) -> None:
        """Do nothing: the bytes that a level has moved play no part."""


def make_turn_policy(
    policy: PolicyName, distributor: Distributor | None, levels: int, *, max_wait: float
) -> TurnPolicy:
    """Return the policy of that name; by default each level has twice the share of the one below.

    Raises `ConfigError` for another name, and for a distributor where shares play no part.
    """
    if policy == "strict":
        if distributor is not None:
            raise ConfigError("The policy strict takes no distributor: the highest level may send all it has.")
        return StrictTurns(max_wait)
    if policy == "fair":
        return FairTurns(distribute(distributor, levels, _PARTS) if distributor else [2**i for i in range(levels)])
    raise ConfigError(f"A producer's policy is fair or strict, not {policy!r}.")
