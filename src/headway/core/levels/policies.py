"""The three policies that divide each poll, or each micro-batch of Spark, among the levels.

Parallel processing has its own policies for slots (`core/engine/slot_policies.py`), and a producer has its own policies
for turns (`core/producer/turn_policies.py`).

A policy is called twice per round. `demand` returns how many records to fetch from each level, and `split` returns how
many of the waiting records to hand out now. Both methods get the buffers of all levels, lowest level first.

Invariants: `split` never hands out more records than the limit, and never more than are waiting. `fair` and `strict`
are work-conserving: they use the whole limit if enough records are waiting, at whichever levels these are. Under
`fair`, a level that always has records gets its share in every period. Under `strict`, no record waits forever.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from headway.core.levels.capacity import BurstWindow, Distributor, burst_shares, distribute, exponential_shares
from headway.core.levels.fair import Fair
from headway.errors import ConfigError


class Backlog(Protocol):
    """The waiting records of one level, in a level buffer or as the unread offsets of a Spark query."""

    def __len__(self) -> int: ...

    def count_from_before(self, time: float) -> int:
        """Return how many of the waiting records had arrived before this time."""
        ...

    def oldest(self) -> float | None:
        """Return when the first waiting record arrived, or None if no record waits."""
        ...


Buffers = Sequence[Backlog]


class Policy(Protocol):
    """Decides how the levels share the capacity of a round."""

    def demand(self, buffers: Buffers) -> list[int]:
        """Return how many records to fetch from each level."""
        ...

    def split(self, buffers: Buffers, limit: int, now: float) -> list[int]:
        """Return how many waiting records of each level to hand out. The total is at most `limit`."""
        ...


class CapacityBurst:
    """The policy of the Java priority client: fixed shares, and one level at a time may also use unused capacity.

    If a level bursts and the other levels suddenly get records, more records than the limit can be waiting. The surplus
    stays in the buffers for the next round.
    """

    def __init__(self, shares: Sequence[int], window_size: int = 6, threshold: int = 4) -> None:
        self._shares = shares
        self._windows = [BurstWindow(window_size, threshold) for _ in shares]

    def demand(self, buffers: Buffers) -> list[int]:
        """Return the shares of this round, minus the records that are already waiting."""
        shares = burst_shares(self._shares, self._windows)
        return [max(0, share - len(buffer)) for share, buffer in zip(shares, buffers, strict=True)]

    def split(self, buffers: Buffers, limit: int, now: float) -> list[int]:
        """Return how many records of each level to hand out: all waiting records up to the limit, highest level first.

        The number of waiting records of each level is also added to the level's window.
        """
        for window, buffer in zip(self._windows, buffers, strict=True):
            window.add(len(buffer))
        return _highest_first([len(buffer) for buffer in buffers], limit)


class Strict:
    """The policy that serves the highest level first.

    A record that has waited longer than `max_wait` seconds is overdue, and goes before all records that are not. Among
    levels with overdue records, the level with the oldest record goes first. On a tie, the higher level goes first.
    """

    def __init__(self, capacity: int, max_wait: float) -> None:
        self._capacity = capacity
        self._max_wait = max_wait

    def demand(self, buffers: Buffers) -> list[int]:
        """Return how many more records each level needs to fill a whole round on its own."""
        return [max(0, self._capacity - len(buffer)) for buffer in buffers]

    def split(self, buffers: Buffers, limit: int, now: float) -> list[int]:
        """Return how many records of each level to hand out. The total is at most `limit`.

        Records that have waited too long come first, and then the records of the highest levels.
        """
        overdue = self._overdue(buffers, limit, now)
        rest = [len(buffer) - count for buffer, count in zip(buffers, overdue, strict=True)]
        return [sum(pair) for pair in zip(overdue, _highest_first(rest, limit - sum(overdue)), strict=True)]

    def _overdue(self, buffers: Buffers, limit: int, now: float) -> list[int]:
        counts = [buffer.count_from_before(now - self._max_wait) for buffer in buffers]
        if sum(counts) <= limit:
            return counts
        # The age of a backlog that existed before the start is not known, so it is assumed to be the same at all
        # levels.
        by_wait = sorted(
            (level for level, count in enumerate(counts) if count), key=lambda i: (buffers[i].oldest() or now, -i)
        )
        return _in_order(by_wait, counts, limit)


PolicyName = Literal["capacity_burst", "fair", "strict"]


def make_policy(
    name: PolicyName,
    distributor: Distributor | None,
    levels: int,
    capacity: int,
    *,
    window_size: int = 6,
    threshold: int = 4,
    max_wait: float = 5.0,
) -> tuple[list[int], Policy]:
    """Return the shares of the levels and the policy with this name. The default distributor is `exponential_shares`.

    Raises `ConfigError` if there is no policy with this name, if the distributor cannot divide the capacity, or if a
    distributor is given with `strict`.
    """
    check_policy(name, distributor)
    if name == "strict":
        return [capacity] * levels, Strict(capacity, max_wait)
    shares = distribute(distributor or exponential_shares, levels, capacity)
    return shares, Fair(shares) if name == "fair" else CapacityBurst(shares, window_size, threshold)


def check_policy(
    name: PolicyName,
    distributor: Distributor | None,
    known: Sequence[PolicyName] = ("capacity_burst", "fair", "strict"),
) -> None:
    """Raise `ConfigError` if the name is not in `known`, or if a distributor is given with `strict`."""
    if name not in known:
        raise ConfigError(f"The policy {name!r} is not one of {', '.join(known[:-1])} and {known[-1]}.")
    if name == "strict" and distributor is not None:
        raise ConfigError(
            "The policy 'strict' takes no distributor, because the highest level may use all capacity. Leave the "
            "distributor out, or choose another policy."
        )


def _highest_first(waiting: Sequence[int], limit: int) -> list[int]:
    return _in_order(reversed(range(len(waiting))), waiting, limit)


def _in_order(levels: Iterable[int], waiting: Sequence[int], limit: int) -> list[int]:
    taken = [0] * len(waiting)
    for level in levels:
        taken[level] = min(waiting[level], limit)
        limit -= taken[level]
    return taken
