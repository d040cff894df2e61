"""The names of level topics and level groups.

Level i of the topic `orders` is the Kafka topic `orders-i`, and the group `billing-i` reads it. The Java priority
client (flipkart-incubator/priority-kafka-client) uses the same names, so that services with either client can share
topics and groups.
"""

import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from headway.declarations import unusable_character
from headway.errors import ConfigError

MOST_LEVELS = 1000
"""The highest allowed number of levels.

A higher number is surely a mistake, because each level needs a Kafka topic, a consumer group, and a client in each
member.
"""

_VALID_NAMES = "1 to 249 of the letters A to Z, digits, '.', '_' and '-'."
_NO_SUCH_NAME = f"This is not a valid name in Kafka: use {_VALID_NAMES}"
_is_name = re.compile(r"[A-Za-z0-9._-]{1,249}").fullmatch


def is_topic_name(name: str) -> bool:
    """Return whether Kafka accepts this as the name of a topic."""
    return isinstance(name, str) and bool(_is_name(name)) and name not in (".", "..")


def how_to_create(topic: str, levels: int | None = None) -> str:
    """Return a sentence for users: how to create a topic, or why its name is not valid in Kafka.

    >>> how_to_create("orders", 3)
    'Create it with `headway topics create orders --levels 3`.'
    >>> how_to_create("our orders")
    "This is not a valid name in Kafka: use 1 to 249 of the letters A to Z, digits, '.', '_' and '-'."
    """
    longest = topic if levels is None else level_topic(topic, levels - 1)
    if not is_topic_name(longest):
        return _NO_SUCH_NAME
    more = "" if levels is None else f" --levels {levels}"
    return f"Create it with `headway topics create {'-- ' if topic.startswith('-') else ''}{topic}{more}`."


def what_there_is(topic: str, existing: Collection[str]) -> str:
    """Return a sentence that suggests an existing topic in place of a missing one, or "" if there is no such topic.

    If a topic without levels is missing, the sentence suggests the topic's levels. If a level is missing, the sentence
    suggests the topic without levels.

    >>> what_there_is("orders", {"orders-0", "orders-1"})
    'The levels orders-0 to orders-1 exist: use a Producer with levels=2, or send to one of them by its name.'
    >>> what_there_is("orders-0", {"orders"})
    'A topic orders without levels exists: send to it with a Producer that has no levels.'
    """
    levels = next(level for level in count() if f"{topic}-{level}" not in existing)
    if levels:
        return (
            f"The levels {topic}-0 to {topic}-{levels - 1} exist: use a Producer with levels={levels}, or send "
            "to one of them by its name."
        )
    base, _, level = topic.rpartition("-")
    if level.isdigit() and base in existing:
        return f"A topic {base} without levels exists: send to it with a Producer that has no levels."
    return ""


def level_topic(topic: str, level: int) -> str:
    """Return the name of the Kafka topic that has one level of a topic.

    Raises `ConfigError` if the level is not a whole number of at least 0, or if the topic is not a string.

    >>> level_topic("orders", 2)
    'orders-2'
    """
    try:
        number = operator.index(level)  # accepts members of an `IntEnum`, and also True, which counts as 1
    except TypeError:
        raise ConfigError(f"The level of {topic} is {level!r}; it must be a whole number.") from None
    if number < 0:
        raise ConfigError(
            f"The level {number} of {topic} does not exist. Levels are numbered from 0, which is the lowest level."
        )
    if not isinstance(topic, str):
        raise ConfigError(f"The topic is {topic!r}; its name must be a string.")
    return f"{topic}-{number}"


def level_group(group: str, level: int) -> str:
    """Return the name of the consumer group that reads one level.

    >>> level_group("billing", 2)
    'billing-2'
    """
    return f"{group}-{level}"


def is_topic_or_level(name: str, topic: str, level: int | None = None) -> bool:
    """Return whether a Kafka topic is this topic, or has the name of one of this topic's levels.

    If `level` is given, only the name of this level counts.

    >>> is_topic_or_level("orders-2", "orders"), is_topic_or_level("orders-new", "orders")
    (True, False)
    """
    before, _, number = name.rpartition("-")
    return name == topic or (
        before == topic and number.isascii() and number.isdecimal() and level in (None, int(number))
    )


def matches(topic: str, name: str) -> bool:
    """Return whether a subscription to `topic`, which is a name or a pattern, includes the Kafka topic `name`.

    Patterns are POSIX extended regular expressions, because librdkafka evaluates them. If Python cannot compile a
    pattern, this returns True.
    """
    if not topic.startswith("^"):
        return topic == name
    try:
        return bool(re.search(topic, name))
    except re.error:
        return True


def groups_of(group: str, levels: int | None, *, per_level: bool) -> list[str]:
    """Return the consumer groups that together read all levels.

    >>> groups_of("billing", 2, per_level=True), groups_of("billing", 2, per_level=False)
    (['billing-0', 'billing-1'], ['billing'])
    """
    return [level_group(group, level) for level in range(levels)] if per_level and levels is not None else [group]


@dataclass(frozen=True, slots=True)
class LevelSubscription:
    """The Kafka topics and patterns that one level's consumer subscribes to, and the suffix of the topics' names."""

    topics: list[str]
    suffix: str

    def kafka_topic(self, topic: str) -> str:
        """Return the name of the Kafka topic that has this level of a topic."""
        return topic + self.suffix

    def reads(self, topic: str) -> bool:
        """Return whether this level can read a topic.

        A level with level topics can read any topic. Otherwise, it can read only the topics to which the user has
        assigned this level.
        """
        return bool(self.topics) and (bool(self.suffix) or any(matches(each, topic) for each in self.topics))


def checked_topics(topics: str | Iterable[str] | Mapping[str, int]) -> list[str] | dict[str, int]:
    """Return the topics as a new list or dict. An iterator is read only here, and only once.

    Raises `ConfigError` for a name that is not valid in Kafka. In a pattern, only the characters are checked.

    >>> checked_topics("orders"), checked_topics(name for name in ("orders", "clicks"))
    (['orders'], ['orders', 'clicks'])
    """
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Iterable):
        raise ConfigError(
            f"The topics to subscribe to are {topics!r}. Give a name, several names, or a dict from names to levels."
        )
    checked = dict(topics) if isinstance(topics, Mapping) else list(topics)
    for name in checked:
        if not isinstance(name, str):
            raise ConfigError(f"Cannot subscribe to {name!r}. A topic must be a name, given as a string.")
        if unusable_character(name) if name.startswith("^") else not is_topic_name(name):
            raise ConfigError(
                f"Cannot subscribe to {name!r}, which is not a valid Kafka topic name. Use {_VALID_NAMES}"
            )
    return checked


def level_subscriptions(topics: Sequence[str], levels: int) -> list[LevelSubscription]:
    """Return the subscription of each level to the level topics of these topics. A `^` at the start marks a pattern.

    >>> [s.topics for s in level_subscriptions(["orders", "^shop_.*"], 2)]
    [['orders-0', '^(shop_.*)-0$'], ['orders-1', '^(shop_.*)-1$']]
    """
    return [LevelSubscription([_at_level(topic, level) for topic in topics], f"-{level}") for level in range(levels)]


def by_given_level(given: Mapping[str, int], levels: int) -> list[LevelSubscription]:
    """Return each level's subscription to the topics without levels that the user has assigned to it, as in KIP-349.

    >>> [s.topics for s in by_given_level({"payments": 1, "clicks": 0}, 2)]
    [['clicks'], ['payments']]

    Raises `ConfigError` for a level that does not exist.
    """
    for topic, level in given.items():
        if not isinstance(level, int) or not 0 <= level < levels:
            raise ConfigError(
                f"The level of the topic {topic!r} is {level!r}; with levels={levels} it must be from 0 to "
                f"{levels - 1}. Choose one of these or raise levels."
            )
    return [LevelSubscription([topic for topic, at in given.items() if at == level], "") for level in range(levels)]


def subscriptions(topics: Sequence[str] | Mapping[str, int], levels: int | None) -> list[LevelSubscription]:
    """Return the subscription of each level's consumer.

    If `levels` is None, there is one subscription, to topics without levels that have exactly these names.

    >>> [s.topics for s in subscriptions(["orders"], None)], [s.topics for s in subscriptions({"clicks": 0}, 2)]
    ([['orders']], [['clicks'], []])
    """
    if isinstance(topics, Mapping):
        return by_given_level(topics, levels or 1)
    return [LevelSubscription(list(topics), "")] if levels is None else level_subscriptions(topics, levels)


def unread_levels(subscriptions: Sequence[LevelSubscription], existing: Collection[str]) -> list[str]:
    """Return the existing Kafka topics of the level above the highest subscribed level.

    No consumer would read these topics.

    >>> unread_levels(level_subscriptions(["orders", "clicks"], 2), ["orders-0", "orders-1", "orders-2", "clicks-1"])
    ['orders-2']
    """
    lowest = subscriptions[0]
    names = [topic.removesuffix(lowest.suffix) for topic in lowest.topics if lowest.suffix and topic[:1] != "^"]
    return [topic for name in names if (topic := level_topic(name, len(subscriptions))) in existing]


def _at_level(topic: str, level: int) -> str:
    if not topic.startswith("^"):
        return level_topic(topic, level)
    # The suffix must follow the whole pattern, including all its alternatives, and must be at the end of the name.
    return f"^({topic[1:].removesuffix('$')})-{level}$"
