"""Translates Headway's partitions into Kafka's topics and partition numbers, and back."""

from collections.abc import Iterable, Mapping, Sequence

import confluent_kafka as ck

from headway.core.levels.group_subscription import GroupSubscription
from headway.kafka.binding.capi import CommittedOffsets, Partition
from headway.records.record_types import TopicPartition


class Addresses:
    """The names in Kafka of the partitions that a member reads for one subscription."""

    def __init__(self, levels: Sequence[int], subscription: GroupSubscription | None = None) -> None:
        self._levels = levels
        self.subscription = subscription or GroupSubscription.nothing(levels)

    def topic(self, partition: TopicPartition) -> str:
        """Return the Kafka topic of a partition."""
        return self.subscription.kafka_topic(partition.topic, partition.level)

    def topics(self, partitions: Iterable[TopicPartition]) -> set[str]:
        """Return the Kafka topics of partitions."""
        return {self.topic(partition) for partition in partitions}

    def name(self, partition: TopicPartition) -> Partition:
        """Return a partition's name in Kafka."""
        return self.topic(partition), partition.partition

    def names(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Return the names of partitions in Kafka."""
        return [self.name(partition) for partition in partitions]

    def of(self, topic: str | None, number: int | None) -> TopicPartition:
        """Return the partition that has this name in Kafka."""
        ours, level = self.subscription.address(topic)  # type: ignore[arg-type]  # the binding's fields are never None here
        return TopicPartition(ours, partition=number, level=level)  # type: ignore[arg-type]

    def level_of(self, topic: str | None) -> int | None:
        """Return the level that a problem with this Kafka topic concerns, or None if it concerns several."""
        return self._levels[0] if len(self._levels) == 1 else self.subscription.level_of(topic)

    # Types of the binding

    def to_kafka(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        """Return partitions in the binding's type."""
        return [ck.TopicPartition(*self.name(partition)) for partition in partitions]

    def places(self, offsets: Mapping[TopicPartition, int]) -> list[ck.TopicPartition]:
        """Return offsets in the binding's type."""
        return [ck.TopicPartition(*self.name(each), offset) for each, offset in offsets.items()]

    def from_kafka(self, partitions: Iterable[ck.TopicPartition]) -> list[TopicPartition]:
        """Return the binding's partitions as Headway's."""
        return [self.of(each.topic, each.partition) for each in partitions]

    def offsets(self, places: Iterable[ck.TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the offsets in an answer of the binding, with None for a partition without an offset."""
        return {self.of(each.topic, each.partition): each.offset if each.offset >= 0 else None for each in places}

    def commits(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> CommittedOffsets:
        """Return offsets and metadata for a commit by librdkafka."""
        return {self.name(each): (offset, metadata.encode()) for each, (offset, metadata) in commits.items()}
