"""The topics that one member of a group reads, for one level or for several levels."""

from collections.abc import Mapping, Sequence

from headway.core.levels.naming import LevelSubscription
from headway.errors import ConfigError


class GroupSubscription:
    """The subscriptions of a member's levels, and the level of each subscribed Kafka topic.

    Invariant: no Kafka topic belongs to two levels. The name of a level topic ends with its level, and the user assigns
    exactly one level to each topic without levels.

    Args:
        by_level: The subscription of each of the member's levels.
        all_topics: The level of each Kafka topic that is subscribed to by name, including topics that other members of
            the same consumer read. By default, these are only the topics in `by_level`.
    """

    def __init__(self, by_level: Mapping[int, LevelSubscription], all_topics: Mapping[str, int] | None = None) -> None:
        self._by_level = dict(by_level)
        self.all_topics = _named(by_level) if all_topics is None else all_topics
        self.topics = [topic for each in by_level.values() for topic in each.topics]
        """The Kafka topics and patterns of all levels."""
        self._of_suffix = {each.suffix: level for level, each in by_level.items() if each.topics and each.suffix}
        self._given = {topic: level for level, each in by_level.items() if not each.suffix for topic in each.topics}
        self._only = next(iter(by_level)) if len(by_level) == 1 else None

    @classmethod
    def of(cls, levels: Sequence[int], subscriptions: Sequence[LevelSubscription]) -> "GroupSubscription":
        """Return the subscription of the member that reads these levels. `subscriptions` has one item for each level.

        Raises `ConfigError` if the member reads several levels and the user has assigned a pattern to one of them.
        """
        by_level = {level: subscriptions[level] for level in levels}
        patterns = [topic for each in by_level.values() if not each.suffix for topic in each.topics if topic[:1] == "^"]
        if patterns and len(levels) > 1:
            raise ConfigError(
                f"The pattern {patterns[0]!r} is assigned to a level, but one group reads all levels, and patterns of "
                "two levels could match the same topic. Name the topics, or set group.per.level to true."
            )
        return cls(by_level, _named(dict(enumerate(subscriptions))))

    @classmethod
    def nothing(cls, levels: Sequence[int]) -> "GroupSubscription":
        """Return the subscription of a member that reads nothing yet."""
        return cls({level: LevelSubscription([], "") for level in levels})

    def kafka_topic(self, topic: str, level: int) -> str:
        """Return the name of the Kafka topic that has this level of a topic."""
        return self._by_level[level].kafka_topic(topic)

    @property
    def has_level_topics(self) -> bool:
        """True if the member reads level topics (Kafka topics whose names end with a level)."""
        return bool(self._of_suffix)

    def reads(self, topic: str, level: int) -> bool:
        """Return whether this level can read the topic."""
        return level in self._by_level and self._by_level[level].reads(topic)

    def address(self, kafka_topic: str) -> tuple[str, int]:
        """Return the topic and the level of a Kafka topic that this member reads.

        >>> levels = {0: LevelSubscription(["orders-0"], "-0"), 1: LevelSubscription(["orders-1"], "-1")}
        >>> GroupSubscription(levels).address("orders-1")
        ('orders', 1)
        """
        if self._only is not None:
            return kafka_topic.removesuffix(self._by_level[self._only].suffix), self._only
        topic, hyphen, number = kafka_topic.rpartition("-")
        level = self._of_suffix.get(hyphen + number)
        return (kafka_topic, self._given.get(kafka_topic, 0)) if level is None else (topic, level)

    def level_of(self, kafka_topic: str | None) -> int | None:
        """Return the level that a problem with this Kafka topic affects.

        Returns None if the problem affects all levels of the member.
        """
        if self._only is not None:
            return self._only
        known = kafka_topic is not None and (kafka_topic in self._given or kafka_topic in self.topics)
        return self.address(kafka_topic)[1] if known and kafka_topic else None

    def keeps_addresses_of(self, other: "GroupSubscription") -> bool:
        """Return whether all Kafka topics of another subscription have the same topic and level in this one."""
        if self._only is not None or self._of_suffix:
            return self._suffixes == other._suffixes
        return other._suffixes == {""} and other._given.items() <= self._given.items()

    @property
    def _suffixes(self) -> set[str]:
        return {each.suffix for each in self._by_level.values() if each.topics}


def _named(by_level: Mapping[int, LevelSubscription]) -> dict[str, int]:
    return {topic: level for level, each in by_level.items() for topic in each.topics if topic[:1] != "^"}
