"""Finds the partitions that stand still although they could go on."""

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

P = TypeVar("P")


class StandingPartitions(Generic[P]):
    """Notes since when each partition could have gone on, but has not moved.

    >>> still = StandingPartitions()
    >>> still.look({"orders": 7}, {"orders"}, now=0.0)
    >>> still.look({"orders": 7}, {"orders"}, now=5.0)
    >>> still.seconds(now=6.0)
    {'orders': 6.0}
    """

    def __init__(self) -> None:
        self._since: dict[P, tuple[int, float]] = {}

    def look(self, positions: Mapping[P, int], able: Collection[P], now: float) -> None:
        """Record the positions of all partitions, and which of them could go on."""
        before = self._since
        self._since = {
            partition: before[partition]
            if partition in before and before[partition][0] == positions[partition]
            else (positions[partition], now)
            for partition in able
            if partition in positions
        }

    def seconds(self, now: float) -> dict[P, float]:
        """Return how long each partition has stood still although it could go on."""
        return {partition: now - since for partition, (_, since) in self._since.items()}
