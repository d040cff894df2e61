"""The members of all levels' groups together: a call about partitions goes to the level that has them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headway.errors import ConfigError
from headway.kafka.binding.capi import Offsets
from headway.kafka.consumer.commits import SentCommit
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.records import TopicPartition

T = TypeVar("T")
Partitions = Iterable[TopicPartition]


class LevelOffsets(NamedTuple):
    """The offsets of one level as a transactional producer commits them, and the metadata of the level's group."""

    level: int
    offsets: Offsets
    group_metadata: bytes


class LevelConsumers:
    """The consumers of the levels, lowest first."""

    def __init__(self, levels: Sequence[LevelConsumer]) -> None:
        self._levels = levels

    def __iter__(self) -> Iterator[LevelConsumer]:
        return iter(self._levels)

    def __reversed__(self) -> Iterator[LevelConsumer]:
        return reversed(self._levels)

    def __len__(self) -> int:
        return len(self._levels)

    def __getitem__(self, level: int) -> LevelConsumer:
        if not 0 <= level < len(self._levels):
            raise ConfigError(f"Level {level} does not exist; the levels are 0 to {len(self._levels) - 1}.")
        return self._levels[level]

    def of(self, partition: TopicPartition) -> LevelConsumer:
        """Return the level of an assigned partition; raises `ConfigError` for a partition that is not assigned."""
        level = self[partition.level]
        if partition not in level.assigned:
            raise ConfigError(
                f"Partition {partition.partition} of {partition.topic} at level {partition.level} is not assigned to "
                "this consumer now; assignment() says which are."
            )
        return level

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels."""
        return set().union(*(level.assigned for level in self._levels))

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions of all levels."""
        return set().union(*(level.paused for level in self._levels))

    def chosen(
        self, partitions: Partitions | None, level: int | None, topic: str | None = None
    ) -> dict[LevelConsumer, set[TopicPartition]]:
        """Return these partitions, or all of a level and of a topic, as far as those are given, by level."""
        if partitions is None:
            levels = self._levels if level is None else [self[level]]
            return {each: {one for one in each.assigned if topic in (None, one.topic)} for each in levels}
        by_level: dict[LevelConsumer, set[TopicPartition]] = {}
        for partition in partitions:
            by_level.setdefault(self.of(partition), set()).add(partition)
        return by_level

    def positions(self, levels: Collection[int] | None = None) -> dict[TopicPartition, int]:
        """Return the next offset to be fetched of each partition, of these levels or of all."""
        positions: dict[TopicPartition, int] = {}
        for level in self._levels:
            if levels is None or level.level in levels:
                positions |= level.positions()
        return positions

    # What Kafka has

    def commit(self, offsets: Mapping[TopicPartition, int]) -> SentCommit:
        """Send a commit to the groups of its levels; raises `ConfigError` for a topic that a level does not read."""
        self._require_read(offsets)
        return SentCommit([level.commit(of_level) for level, of_level in self._by_level(offsets)])

    def committed(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, None if it has none."""
        return self._ask(dict.fromkeys(partitions, 0), lambda level, of_level: level.committed(of_level, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return each first offset at or after a time in milliseconds since the epoch, None if there is none."""
        return self._ask(times, lambda level, of_level: level.offsets_for_times(of_level, timeout))

    def bounds(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset of each partition and the one after its last."""
        return {each: self[each.level].bounds(each, timeout) for each in partitions}

    def partitions_for(self, topic: str, timeout: float) -> list[TopicPartition]:
        """Return the partitions of a topic, of all levels that read it."""
        counts = ((level.level, level.partition_count(topic, timeout)) for level in self._levels)
        return [
            TopicPartition(topic, partition=partition, level=level)
            for level, count in counts
            for partition in range(count)
        ]

    def for_transaction(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> list[LevelOffsets]:
        """Return each level's offsets for a transactional producer; raises `ConfigError` for topics not read."""
        self._require_read(commits)
        return [
            LevelOffsets(level.level, level.as_native(of_level), level.group_metadata)
            for level, of_level in self._by_level(commits)
        ]

    def _require_read(self, partitions: Partitions) -> None:
        """Raise `ConfigError` for offsets that a level's group would store for a topic that the level does not read."""
        for topic, partition, level in partitions:
            if not self[level].reads(topic):
                raise ConfigError(
                    f"Partition {partition} of {topic} at level {level} cannot be committed: this level does not read "
                    f"{topic} now. partitions_for({topic!r}) says which levels do."
                )

    def _by_level(self, of_all: Mapping[TopicPartition, T]) -> Iterator[tuple[LevelConsumer, dict[TopicPartition, T]]]:
        for level in sorted({partition.level for partition in of_all}):
            yield self[level], {each: value for each, value in of_all.items() if each.level == level}

    def _ask(
        self,
        of_all: Mapping[TopicPartition, int],
        ask: Callable[[LevelConsumer, dict[TopicPartition, int]], dict[TopicPartition, int | None]],
    ) -> dict[TopicPartition, int | None]:
        answers: dict[TopicPartition, int | None] = {}
        for level, of_level in self._by_level(of_all):
            answers |= ask(level, of_level)
        return answers
