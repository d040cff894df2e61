"""What was seen earlier, from which rates and the ages of records follow without reading the records."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable

RATES_OVER = 30.0
"""The seconds over which rates are computed. Members commit every five seconds, so a shorter time would show waves."""

_LEAST_TIME = 5.0  # seconds; over a shorter time, it is chance how many commits are seen
_MOST_ENDS = 256

_Look = tuple[float, int, int]


class Rates:
    """The rates at which records of one level arrive and are done, from totals that are seen at intervals.

    >>> rates = Rates()
    >>> rates.see(100.0, arrived=500, not_done=40)
    >>> rates.see(110.0, arrived=600, not_done=20)
    >>> rates.arrived_per_second, rates.done_per_second
    (10.0, 12.0)
    """

    def __init__(self) -> None:
        self._seen = deque[_Look]()

    def see(self, now: float, arrived: int, not_done: int) -> None:
        """Add the sum of the end offsets, and of the offsets that are not done, at a time."""
        if self._seen and (now <= self._seen[-1][0] or arrived < self._seen[-1][1]):
            self._seen.clear()  # the clock was set back, or a topic was deleted and created again
        self._seen.append((now, arrived, not_done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATES_OVER:
            self._seen.popleft()

    @property
    def arrived_per_second(self) -> float | None:
        """The records that arrived per second, or None before the second look."""
        return self._per_second(lambda first, last: last[1] - first[1])

    @property
    def done_per_second(self) -> float | None:
        """The records that were done per second, or None in the first five seconds."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < _LEAST_TIME:
            return None
        return self._per_second(lambda first, last: max(0, last[1] - last[2] - first[1] + first[2]))

    def seconds_of_work(self, not_done: int) -> float | None:
        """Return how long it takes to do these records at the present rate, or None if nothing was done."""
        if not not_done:
            return 0.0
        rate = self.done_per_second
        return not_done / rate if rate else None

    def _per_second(self, difference: Callable[[_Look, _Look], int]) -> float | None:
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        return difference(first, last) / (last[0] - first[0])


class SeenEnds:
    """The end offsets of a partition at the times at which they were seen.

    From these follows when a record arrived that was not there at the first look. Older looks are kept less densely.

    >>> ends = SeenEnds()
    >>> ends.see(100.0, 50)
    >>> ends.see(110.0, 60)
    >>> ends.time_of(49), ends.time_of(50), ends.time_of(55), ends.time_of(60)
    (None, 100.0, 105.0, None)
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    def see(self, now: float, end: int) -> None:
        """Add the end offset at a time."""
        if self._ends and end < self._ends[-1]:
            self._times, self._ends = [], []
        if len(self._ends) >= 2 and self._ends[-2] == end:
            self._times[-1] = now  # nothing has arrived, so only the time between two looks is extended
            return
        self._times.append(now)
        self._ends.append(end)
        if len(self._ends) > _MOST_ENDS:
            half = len(self._ends) // 2
            self._times = self._times[:half:2] + self._times[half:]
            self._ends = self._ends[:half:2] + self._ends[half:]

    def time_of(self, offset: int) -> float | None:
        """Return about when the record at an offset arrived, or None if it was there at first, or is not there yet."""
        index = bisect_right(self._ends, offset)
        if index == 0 or index == len(self._ends):
            return None
        before, after = self._ends[index - 1], self._ends[index]
        fraction = (offset - before) / (after - before)
        return self._times[index - 1] + fraction * (self._times[index] - self._times[index - 1])
