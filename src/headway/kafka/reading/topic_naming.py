"""The Kafka topics that are read: the level topics of logical topics, or topics under their own names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.levels.naming import level_topic
from headway.records.record_types import TopicPartition


class PlainPartition(TopicPartition):
    """A partition of a topic under its own name, whose level is the topic's priority.

    It is equal to the `TopicPartition` with the same numbers, because one read has only one of the two kinds.
    """

    __slots__ = ()


def kafka_topic(partition: TopicPartition) -> str:
    """Return the Kafka topic of a partition.

    >>> kafka_topic(TopicPartition("orders", partition=0, level=2)), kafka_topic(PlainPartition("orders", partition=0))
    ('orders-2', 'orders')
    """
    return partition.topic if isinstance(partition, PlainPartition) else level_topic(partition.topic, partition.level)


class NamedTopic(NamedTuple):
    """A topic at one level, and the Kafka topic that holds it."""

    topic: str
    level: int
    kafka_topic: str


@dataclass(frozen=True, slots=True)
class TopicNaming:
    """The names in Kafka of a read's topics: `levels` level topics for each, or without levels the topics' own names.

    A topic without levels has the level in `priorities`, or otherwise the lowest level.
    """

    levels: int | None
    priorities: Mapping[str, int] = field(default_factory=dict)

    @property
    def level_count(self) -> int:
        """The number of levels that the records can have."""
        return self.levels or 1 + max(self.priorities.values(), default=0)

    def kafka_topics(self, topics: Iterable[str]) -> list[NamedTopic]:
        """Return the Kafka topics of these topics.

        >>> TopicNaming(2).kafka_topics(["orders"])[1]
        NamedTopic(topic='orders', level=1, kafka_topic='orders-1')
        >>> TopicNaming(None, {"orders": 4}).kafka_topics(["orders"])
        [NamedTopic(topic='orders', level=4, kafka_topic='orders')]
        """
        if self.levels is None:
            return [NamedTopic(topic, self.priorities.get(topic, 0), topic) for topic in topics]
        return [NamedTopic(topic, level, level_topic(topic, level)) for topic in topics for level in range(self.levels)]

    def partition(self, topic: str, partition: int, level: int) -> TopicPartition:
        """Return a partition of a topic. Without levels, its level is the topic's priority."""
        if self.levels is None:
            return PlainPartition(topic, partition=partition, level=self.priorities.get(topic, 0))
        return TopicPartition(topic, partition=partition, level=level)
