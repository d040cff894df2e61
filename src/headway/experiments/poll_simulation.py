"""Simulates consumers that poll: the real policies of `PriorityConsumer` decide, and time is a number."""

from collections.abc import Sequence

from headway.core.levels.level_buffer import LevelBuffer
from headway.core.levels.policies import Policy


class PolledLevels:
    """The levels of one consumer: the numbers of records in Kafka, and the buffers that the policy sees.

    A record in a buffer is the time of its fetch, because the records of a level come out in the order in which they
    went in.
    """

    def __init__(self, policy: Policy, levels: int, capacity: int) -> None:
        self._policy = policy
        self._capacity = capacity
        self.in_kafka = [0] * levels
        self.buffers: list[LevelBuffer[float]] = [LevelBuffer() for _ in range(levels)]

    @property
    def waiting(self) -> int:
        """The number of records that were not returned yet."""
        return sum(self.in_kafka) + sum(map(len, self.buffers))

    def arrive(self, counts: Sequence[int]) -> None:
        """Add this many records to each level."""
        self.in_kafka = [sum(pair) for pair in zip(self.in_kafka, counts, strict=True)]

    def poll(self, now: float) -> list[list[float]]:
        """Poll as `PriorityConsumer` does. Returns for each level the times at which its records were fetched."""
        for level, demand in enumerate(self._policy.demand(self.buffers)):
            fetched = min(demand, self.in_kafka[level])
            self.buffers[level].put([now] * fetched, now)
            self.in_kafka[level] -= fetched
        split = self._policy.split(self.buffers, self._capacity, now)
        return [buffer.take(count) for buffer, count in zip(self.buffers, split, strict=True)]
