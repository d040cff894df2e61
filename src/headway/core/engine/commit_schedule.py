"""Decides when each level commits: at regular intervals, or after failures when the level's own back-off has passed.

Invariants: a level whose commit has failed commits alone until one of its commits succeeds, so it does not delay other
levels. The back-off doubles with each failure in a row, up to a bound.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headway.core.retry import exponential_backoff

_back_off = exponential_backoff(first=0.2, longest=10.0)


@dataclass(slots=True)
class _FailedCommits:
    """For a level whose last commits have failed: the number of failures in a row, and the time of the next attempt."""

    count: int
    again_at: float


class CommitSchedule:
    """Decides when levels commit. Times are in seconds.

    >>> schedule = CommitSchedule(levels=2, interval=5.0, now=100.0)
    >>> schedule.due(104.0), schedule.due(105.0)
    ([], [{0, 1}])
    >>> schedule.began({0, 1}, 105.0)
    >>> schedule.failed([0], now=106.0, random_number=0.0)
    >>> schedule.due(106.1), schedule.due(106.3), schedule.due(110.0)
    ([], [{0}], [{1}, {0}])
    """

    def __init__(self, levels: int, interval: float, now: float) -> None:
        self._levels = range(levels)
        self._interval = interval
        self._due_at = now + interval
        self._failures: dict[int, _FailedCommits] = {}

    def due(self, now: float) -> list[set[int]]:
        """Return the levels to commit now, in groups that commit together.

        The first group has all levels without failures, if their commit is due. Each level whose last commit failed is
        a group of its own.
        """
        healthy = {level for level in self._levels if level not in self._failures}
        retried = [{level} for level, failures in self._failures.items() if failures.again_at <= now]
        return ([healthy] if healthy and now >= self._due_at else []) + retried

    def next_time(self) -> float:
        """Return when the next commit is due."""
        times = [failures.again_at for failures in self._failures.values()]
        return min(times if len(times) == len(self._levels) else [*times, self._due_at])

    def began(self, levels: Collection[int], now: float) -> None:
        """Record that a commit of these levels has begun.

        If the last commits of these levels have not failed, the next commit is due after the interval.
        """
        if not self._failures.keys() & levels:
            self._due_at = now + self._interval

    def request(self) -> None:
        """Make the commit of all levels without failures due at once."""
        self._due_at = 0.0

    def hurry(self, levels: Collection[int]) -> None:
        """Make the commits of these levels, and of all levels without failures, due at once.

        These levels are about to lose partitions, so any back-off of theirs is cut short.
        """
        self.request()
        for level, failures in self._failures.items():
            if level in levels:
                failures.again_at = 0.0

    def succeeded(self, levels: Iterable[int]) -> None:
        """Record that the last commit of these levels was acknowledged, or that they had nothing to commit."""
        for level in levels:
            self._failures.pop(level, None)

    def failed(self, levels: Iterable[int], now: float, random_number: float) -> None:
        """Record that a commit of these levels failed.

        A random number from 0 to 1 shortens the back-off, so that members do not all try again at the same time.
        """
        for level in levels:
            failures = self._failures.setdefault(level, _FailedCommits(0, now))
            failures.count += 1
            failures.again_at = now + _back_off(failures.count, random_number)
