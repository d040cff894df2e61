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
from heapq import heapify, heappop, heapreplace
from typing import Literal, Protocol

from headway.core.levels.capacity import BurstWindow, Distributor, burst_shares, distribute, exponential_shares, strides
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


class Fair:
    """The policy that gives the levels records in proportion to their shares, without leaving capacity unused.

    Each pick goes to the level with the earliest virtual deadline among the levels with waiting records. The deadlines
    of a level are one stride apart; the stride is the inverse of the level's share. A level that was idle resumes at
    the current virtual time, so that idle time earns no credit. (Start-time fair queueing, Goyal, Vin and Cheng 1996;
    stride scheduling, Waldspurger 1995.)
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self._capacity = sum(shares)
        self._strides = strides(shares)
        self._starts = [0] * len(shares)
        self._idle = [True] * len(shares)
        self._virtual_time = 0

    def demand(self, buffers: Buffers) -> list[int]:
        """Return how many more records each level needs to fill a whole round on its own."""
        return [max(0, self._capacity - len(buffer)) for buffer in buffers]

    def split(self, buffers: Buffers, limit: int, now: float) -> list[int]:
        """Return how many records to take from each level.

        The earliest deadline goes first; on a tie, the higher level does.
        """
        return self.pick([len(buffer) for buffer in buffers], limit)

    def pick(self, waiting: Sequence[int], limit: int) -> list[int]:
        """Return how many records to take from each level.

        `waiting` has the number of waiting records of each level.
        """
        if sum(waiting) <= limit:
            self._start_over()
            return list(waiting)
        self._welcome(waiting)
        picks = self._earliest(waiting, limit)
        self._advance(waiting, picks)
        return picks

    def pick_one(self, waiting: Sequence[int]) -> int | None:
        """Return the level of the next pick, or None if no level waits.

        This method is much faster than `pick` with a limit of 1.
        """
        starts, idle = self._starts, self._idle
        earliest, chosen = 0, None
        for level, count in enumerate(waiting):
            if count and idle[level]:
                starts[level] = max(starts[level], self._virtual_time)
            idle[level] = not count
            deadline = starts[level] + self._strides[level]
            if count and (chosen is None or deadline <= earliest):
                earliest, chosen = deadline, level
        if chosen is not None:
            self._virtual_time = max(self._virtual_time, starts[chosen])
            starts[chosen] = earliest
        return chosen

    def _start_over(self) -> None:
        self._starts = [0] * len(self._strides)
        self._idle = [True] * len(self._strides)
        self._virtual_time = 0

    def _welcome(self, waiting: Sequence[int]) -> None:
        for level, count in enumerate(waiting):
            if count and self._idle[level]:
                self._starts[level] = max(self._starts[level], self._virtual_time)
                self._idle[level] = False

    def _earliest(self, waiting: Sequence[int], limit: int) -> list[int]:
        """Return how many picks each level gets, up to the limit.

        Most picks are found by bisection over the deadline, and the last few are chosen one by one.
        """
        starts, strides = self._starts, self._strides

        def picked_by(deadline: int) -> list[int]:
            return [
                min(count, max(0, (deadline - start) // stride))
                for count, start, stride in zip(waiting, starts, strides, strict=True)
            ]

        early, late = min(starts), max(starts) + max(strides) * (limit + 1)
        picks = picked_by(early)
        while limit - sum(picks) > len(picks):
            middle = (early + late) // 2
            if sum(tried := picked_by(middle)) <= limit:
                early, picks = middle, tried
            else:
                late = middle
        deadlines = [
            (starts[level] + (picks[level] + 1) * strides[level], -level)
            for level, count in enumerate(waiting)
            if picks[level] < count
        ]
        heapify(deadlines)
        for _ in range(limit - sum(picks)):
            deadline, number = deadlines[0]
            picks[-number] += 1
            if picks[-number] < waiting[-number]:
                heapreplace(deadlines, (deadline + strides[-number], number))
            else:
                heappop(deadlines)
        return picks

    def _advance(self, waiting: Sequence[int], picks: Sequence[int]) -> None:
        for level, picked in enumerate(picks):
            if picked:
                self._starts[level] += picked * self._strides[level]
                self._virtual_time = max(self._virtual_time, self._starts[level] - self._strides[level])
            self._idle[level] = picked == waiting[level]


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


def highest_and_overdue(oldest: Iterable[float | None], before: float) -> tuple[int | None, int | None]:
    """Return the highest level with waiting records, and the overdue level whose first record has waited longest.

    `oldest` has, for each level, the arrival time of its first waiting record, or None if no record waits. A level is
    overdue if this time is earlier than `before`. Each of the two results can be None.

    >>> highest_and_overdue([3.0, 2.0, 7.0, None], before=5.0)
    (2, 1)
    """
    highest, overdue = None, None
    for level, since in enumerate(oldest):
        if since is not None:
            highest = level
            if since < before:
                overdue, before = level, since
    return highest, overdue


def _highest_first(waiting: Sequence[int], limit: int) -> list[int]:
    return _in_order(reversed(range(len(waiting))), waiting, limit)


def _in_order(levels: Iterable[int], waiting: Sequence[int], limit: int) -> list[int]:
    taken = [0] * len(waiting)
    for level in levels:
        taken[level] = min(waiting[level], limit)
        limit -= taken[level]
    return taken
