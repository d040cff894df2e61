"""The pauses that a user has requested: of all partitions, of levels, of topics and of single partitions.

Invariant: a pause lasts until the user ends this pause or all pauses. Rebalances do not end a pause.
"""

from collections.abc import Collection, Iterable

from headway.records.record_types import TopicPartition


class Pauses:
    """The pauses in effect. A partition is paused while any of these pauses covers it.

    >>> pauses, partition = Pauses(), TopicPartition("orders", partition=3, level=2)
    >>> pauses.begin(topic="orders")
    >>> pauses.begin(level=2)
    >>> pauses.end(level=2)
    >>> pauses.covers(partition)
    True
    """

    def __init__(self) -> None:
        self._levels: set[int] = set()
        self._topics: set[str] = set()
        self._partitions: set[TopicPartition] = set()

    def __bool__(self) -> bool:
        """Return whether any pause is in effect."""
        return bool(self._levels or self._topics or self._partitions)

    def begin(
        self, partitions: Iterable[TopicPartition] = (), *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Pause these partitions, and also a topic or a level if the caller gives one."""
        self._partitions.update(partitions)
        self._topics.update(() if topic is None else [topic])
        self._levels.update(() if level is None else [level])

    def end(
        self, partitions: Iterable[TopicPartition] = (), *, topic: str | None = None, level: int | None = None
    ) -> None:
        """End the pauses of these partitions, this topic and this level. Other pauses can still cover a partition."""
        self._partitions.difference_update(partitions)
        self._topics.difference_update(() if topic is None else [topic])
        self._levels.difference_update(() if level is None else [level])

    def end_all(self) -> None:
        """End all pauses."""
        self._levels.clear()
        self._topics.clear()
        self._partitions.clear()

    def covers(self, partition: TopicPartition) -> bool:
        """Return whether any pause covers a partition."""
        return partition.level in self._levels or partition.topic in self._topics or partition in self._partitions

    def covered(self, partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
        """Return the paused partitions among the given ones."""
        return {partition for partition in partitions if self.covers(partition)} if self else set()
