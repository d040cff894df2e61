"""Names the Kafka topics that are read: the level topics of logical topics, or topics under their own names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.levels.naming import level_topic
from headway.records.record_types import TopicPartition


class PlainPartition(TopicPartition):
    """A partition of a topic that has no levels, so that the Kafka topic has the topic's own name.

    `level` is the topic's priority. A `PlainPartition` compares equal to a `TopicPartition` with the same topic and
    numbers. This does no harm, because each read uses only one of the two types.
    """

    __slots__ = ()


def kafka_topic(partition: TopicPartition) -> str:
    """Return the Kafka topic that holds a partition.

    >>> kafka_topic(TopicPartition("orders", partition=0, level=2)), kafka_topic(PlainPartition("orders", partition=0))
    ('orders-2', 'orders')
    """
    return partition.topic if isinstance(partition, PlainPartition) else level_topic(partition.topic, partition.level)


class NamedTopic(NamedTuple):
    """A topic on one level, and the Kafka topic that holds it."""

    topic: str
    level: int
    kafka_topic: str


@dataclass(frozen=True, slots=True)
class TopicNaming:
    """Determines the Kafka topics of a read: `levels` level topics for each topic, or the topic itself without levels.

    A topic without levels has the level that `priorities` gives it, or otherwise the lowest level.
    """

    levels: int | None
    priorities: Mapping[str, int] = field(default_factory=dict)

    @property
    def level_count(self) -> int:
        """The number of levels that the records can have."""
        return self.levels or 1 + max(self.priorities.values(), default=0)

    def kafka_topics(self, topics: Iterable[str]) -> list[NamedTopic]:
        """Return the Kafka topics that hold these topics.

        >>> TopicNaming(2).kafka_topics(["orders"])[1]
        NamedTopic(topic='orders', level=1, kafka_topic='orders-1')
        >>> TopicNaming(None, {"orders": 4}).kafka_topics(["orders"])
        [NamedTopic(topic='orders', level=4, kafka_topic='orders')]
        """
        if self.levels is None:
            return [NamedTopic(topic, self.priorities.get(topic, 0), topic) for topic in topics]
        return [NamedTopic(topic, level, level_topic(topic, level)) for topic in topics for level in range(self.levels)]

    def partition(self, topic: str, partition: int, level: int) -> TopicPartition:
        """Return a partition of a topic. If topics have no levels, the partition's level is the topic's priority."""
        if self.levels is None:
            return PlainPartition(topic, partition=partition, level=self.priorities.get(topic, 0))
        return TopicPartition(topic, partition=partition, level=level)
