"""The times at which each level commits: at an interval, and after a failure with a back-off of its own.

Invariants: a level that has failed commits apart from the others until it has succeeded, so it keeps none of them back.
A back-off doubles with each failure in a row, up to a bound.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headway.core.retry import exponential_backoff

_back_off = exponential_backoff(first=0.2, longest=10.0)


@dataclass(slots=True)
class _Failures:
    """A level's failures in a row: their number, and the time of the next try."""

    count: int
    again_at: float


class CommitSchedule:
    """The turns in which the levels commit; times are in seconds.

    >>> turns = CommitSchedule(levels=2, interval=5.0, now=100.0)
    >>> turns.due(104.0), turns.due(105.0)
    ([], [{0, 1}])
    >>> turns.began({0, 1}, 105.0)
    >>> turns.failed([0], now=106.0, chance=1.0)
    >>> turns.due(106.1), turns.due(106.3), turns.due(110.0)
    ([], [{0}], [{1}, {0}])
    """

    def __init__(self, levels: int, interval: float, now: float) -> None:
        self._levels = range(levels)
        self._interval = interval
        self._due_at = now + interval
        self._failures: dict[int, _Failures] = {}

    def due(self, now: float) -> list[set[int]]:
        """Return the levels to commit now, in groups that commit together: first all that are well."""
        well = {level for level in self._levels if level not in self._failures}
        tried_again = [{level} for level, failures in self._failures.items() if failures.again_at <= now]
        return ([well] if well and now >= self._due_at else []) + tried_again

    def next_turn(self) -> float:
        """Return when there is a level to commit."""
        times = [failures.again_at for failures in self._failures.values()]
        return min(times if len(times) == len(self._levels) else [*times, self._due_at])

    def began(self, levels: Collection[int], now: float) -> None:
        """Note that these levels commit now; those that are well do so next after the interval."""
        if not self._failures.keys() & levels:
            self._due_at = now + self._interval

    def request(self) -> None:
        """Let the levels that are well commit at once."""
        self._due_at = 0.0

    def hurry(self, levels: Collection[int]) -> None:
        """Let these levels commit at once, whether they are well or not: their partitions are about to leave."""
        self.request()
        for level, failures in self._failures.items():
            if level in levels:
                failures.again_at = 0.0

    def succeeded(self, levels: Iterable[int]) -> None:
        """Note that these levels' last commit was acknowledged, or that they have nothing to commit."""
        for level in levels:
            self._failures.pop(level, None)

    def failed(self, levels: Iterable[int], now: float, chance: float) -> None:
        """Note that a commit of these levels failed; `chance`, from 0 to 1, spreads what failed together."""
        for level in levels:
            failures = self._failures.setdefault(level, _Failures(0, now))
            failures.count += 1
            failures.again_at = now + _back_off(failures.count, 1 - chance)
