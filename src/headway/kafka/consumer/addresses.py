"""Translates between Headway's partitions and Kafka's topics and partition numbers."""

from collections.abc import Iterable, Mapping, Sequence

import confluent_kafka as ck

from headway.core.levels.group_subscription import GroupSubscription
from headway.kafka.binding.capi import CommittedOffsets, Partition
from headway.records.record_types import TopicPartition


class Addresses:
    """The Kafka topics of the partitions that a member reads. These depend on the member's subscription and levels."""

    def __init__(self, levels: Sequence[int], subscription: GroupSubscription | None = None) -> None:
        self._levels = levels
        self.subscription = subscription or GroupSubscription.nothing(levels)

    def topic(self, partition: TopicPartition) -> str:
        """Return the Kafka topic that holds a partition."""
        return self.subscription.kafka_topic(partition.topic, partition.level)

    def topics(self, partitions: Iterable[TopicPartition]) -> set[str]:
        """Return the Kafka topics that hold these partitions."""
        return {self.topic(partition) for partition in partitions}

    def name(self, partition: TopicPartition) -> Partition:
        """Return the Kafka topic and the number of a partition."""
        return self.topic(partition), partition.partition

    def names(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Return the Kafka topic and the number of each of these partitions."""
        return [self.name(partition) for partition in partitions]

    def of(self, topic: str | None, number: int | None) -> TopicPartition:
        """Return Headway's partition for a Kafka topic and a partition number."""
        ours, level = self.subscription.address(topic)  # type: ignore[arg-type]  # these fields of the binding are never None here
        return TopicPartition(ours, partition=number, level=level)  # type: ignore[arg-type]

    def level_of(self, topic: str | None) -> int | None:
        """Return the level to which a Kafka topic belongs, so that an error report can name the level.

        Returns None if the error may concern several levels.
        """
        return self._levels[0] if len(self._levels) == 1 else self.subscription.level_of(topic)

    # Conversions to and from the binding's types

    def to_kafka(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        """Convert partitions to the binding's type."""
        return [ck.TopicPartition(*self.name(partition)) for partition in partitions]

    def places(self, offsets: Mapping[TopicPartition, int]) -> list[ck.TopicPartition]:
        """Convert partitions and their offsets to the binding's type."""
        return [ck.TopicPartition(*self.name(each), offset) for each, offset in offsets.items()]

    def from_kafka(self, partitions: Iterable[ck.TopicPartition]) -> list[TopicPartition]:
        """Convert partitions from the binding's type to Headway's."""
        return [self.of(each.topic, each.partition) for each in partitions]

    def offsets(self, places: Iterable[ck.TopicPartition]) -> dict[TopicPartition, int | None]:
        """Convert the offsets in a result of the binding. A partition without a valid offset gets None."""
        return {self.of(each.topic, each.partition): each.offset if each.offset >= 0 else None for each in places}

    def commits(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> CommittedOffsets:
        """Convert offsets and metadata to the form in which `PendingCommit` expects them."""
        return {self.name(each): (offset, metadata.encode()) for each, (offset, metadata) in commits.items()}
