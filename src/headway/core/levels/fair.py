"""Fair queueing of levels, for polls and for slots.

This is a module of its own because it is compiled: it runs for each slot. The other policies for polls run once a poll.
"""

from collections.abc import Sequence, Sized
from heapq import heapify, heappop, heapreplace

from headway.core.levels.capacity import strides


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

    def demand(self, buffers: Sequence[Sized]) -> list[int]:
        """Return how many more records each level needs to fill a whole round on its own."""
        return [max(0, self._capacity - len(buffer)) for buffer in buffers]

    def split(self, buffers: Sequence[Sized], limit: int, now: float) -> list[int]:
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
