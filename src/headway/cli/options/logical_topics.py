"""Finds topics with levels among the topics of Kafka."""

import difflib
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from headway.core.delay.ladder import MEMORY
from headway.core.levels.naming import MOST_LEVELS, how_to_create, is_topic_name, level_topic
from headway.delay.topic_names import TopicNames
from headway.errors import AuthorizationError, ConfigError

# The names of the topics of shared rate limits, of the Spark sink's markers, and of stop messages to workers on Spark.
_OWN = re.compile("headway-(rates-.+|markers|markers-unnamed|control)")

_SOME_LEVELS = 3  # the number of levels in the example in an error, if the user gave no number


class LogicalTopic(NamedTuple):
    """A topic with its name without a level.

    `partitions` has the number of partitions of each level, or of the topic without levels.
    """

    name: str
    has_levels: bool
    partitions: list[int]


def logical_topics(kafka_topics: Mapping[str, int]) -> list[LogicalTopic]:
    """List Kafka's topics by name. Topics with consecutive suffixes, beginning with `-0`, become one topic with levels.

    >>> for topic in logical_topics({"orders-0": 6, "orders-1": 6, "clicks": 3}): print(*topic)
    clicks False [3]
    orders True [6, 6]
    """
    kafka_topics = dict(kafka_topics)  # a `TopicListing` would send a request for each unlisted topic
    levelled = [
        name[:-2]
        for name in kafka_topics
        if name.endswith("-0") and len(name) > 2 and not _is_delay_topic(name, kafka_topics)
    ]
    found = [LogicalTopic(name, True, list(_partitions(name, kafka_topics))) for name in levelled]
    members = {level_topic(each.name, level) for each in found for level in range(len(each.partitions))}
    plain = [LogicalTopic(name, False, [count]) for name, count in kafka_topics.items() if name not in members]
    return sorted(found + plain)


def schedulers_of(kafka_topics: Collection[str]) -> list[TopicNames]:
    """Find the schedulers that have topics, sorted by name.

    >>> [each.name for each in schedulers_of({"later.state", "later.commands", "orders.state"})]
    ['later']
    """
    states = sorted(name for name in kafka_topics if name.endswith(".state"))
    names = [TopicNames(name.removesuffix(".state")) for name in states if is_topic_name(name) and name != ".state"]
    return [each for each in names if each.commands in kafka_topics]


def headway_topics(kafka_topics: Collection[str]) -> set[str]:
    """Find the topics that Headway uses internally: those of schedulers, shared rate limits and Spark queries.

    >>> sorted(headway_topics({"later.state", "later.commands", "headway-rates-billing", "orders"}))
    ['headway-rates-billing', 'later.commands', 'later.state']
    """
    schedulers = schedulers_of(kafka_topics)
    return {name for name in kafka_topics if _OWN.fullmatch(name) or any(each.owns(name) for each in schedulers)}


def _is_delay_topic(name: str, kafka_topics: Mapping[str, int]) -> bool:
    """Return whether a topic such as `headway-delay.line-0` is a delay topic of a scheduler and not a level."""
    try:
        names = TopicNames(name.rpartition(".")[0])
    except ConfigError:  # no scheduler can have this name
        return False
    return name == names.delay_topic(MEMORY) and names.state in kafka_topics


def count_levels(topic: str, kafka_topics: Container[str], most: int = MOST_LEVELS) -> int:
    """Count the levels of a topic, or of a group, up to the first missing level. Returns at most `most`.

    >>> count_levels("orders", {"orders-0", "orders-1", "orders-3"})
    2
    """
    missing = (level for level in range(most) if level_topic(topic, level) not in kafka_topics)
    return next(missing, most)


def require_levels(topic: str, kafka_topics: Mapping[str, int], asked: int | None, *, may_create: bool = True) -> int:
    """Return how many levels of a topic to use: the number that the user gave, or by default all.

    Raises `ConfigError` if the topic has fewer levels, or does not exist. The message explains how to create the topic,
    unless `may_create` is False because the user wants to delete it.
    """
    found = _count_levels(topic, kafka_topics) if asked is None else count_levels(topic, kafka_topics, asked)
    if found == 0:
        lowest = level_topic(topic, 0)
        is_neither = asked is None and _is_missing(topic, kafka_topics)
        what = f"{topic} and no {lowest}, its lowest level" if is_neither else f"{lowest}, the lowest level of {topic}"
        raise ConfigError(f"Kafka has no topic {what}. {_what_to_do(topic, kafka_topics, asked, may_create)}")
    if asked is not None and asked > found:
        raise ConfigError(
            f"The topic {topic} has {found} levels in Kafka, but --levels is {asked}: {level_topic(topic, found)} is "
            f"missing. Use --levels {found}, or leave it out."
        )
    return asked or found


def _is_missing(topic: str, kafka_topics: Mapping[str, int]) -> bool:
    try:
        return topic not in kafka_topics
    except AuthorizationError:  # the topic may exist, but the client cannot describe it
        return False


def _count_levels(topic: str, kafka_topics: Mapping[str, int]) -> int:
    """Count the levels of a topic.

    Raises `AuthorizationError`, with advice, if the client is not permitted to describe them.
    """
    try:
        return count_levels(topic, kafka_topics)
    except AuthorizationError as error:
        seen = count_levels(topic, dict(kafka_topics))
        if not seen:
            raise
        raise AuthorizationError(
            f"{error} Or give the number of levels of {topic}, such as --levels {seen}."
        ) from error


def require_common_levels(topics: Iterable[str], kafka_topics: Mapping[str, int], asked: int | None) -> int:
    """Return how many levels of several topics to use. A topic can be a pattern such as `^shop_.*`.

    Raises `ConfigError` if they have different numbers of levels, or if a pattern matches no topic.
    """
    found = {topic: _levels_of(topic, kafka_topics, asked) for topic in topics}
    if len(set(found.values())) > 1:
        counts = ", ".join(f"{topic} has {levels}" for topic, levels in found.items())
        raise ConfigError(
            f"The topics have different numbers of levels: {counts}. Use --levels {min(found.values())} for the levels "
            "that they share, or read them one by one."
        )
    return next(iter(found.values()))


def _levels_of(topic: str, kafka_topics: Mapping[str, int], asked: int | None) -> int:
    if not topic.startswith("^"):
        return require_levels(topic, kafka_topics, asked)
    matching = [len(each.partitions) for each in _matching(topic, kafka_topics)]
    if not (asked or matching):
        raise ConfigError(
            f"No topic in Kafka matches {topic} now. To wait for one, give its number of levels with --levels."
        )
    return asked or max(matching)


def _matching(pattern: str, kafka_topics: Mapping[str, int]) -> list[LogicalTopic]:
    try:
        name = re.compile(pattern[1:].removesuffix("$"))
    except re.error as error:
        raise ConfigError(
            f"{pattern} is not a pattern: {error}. Correct it, or leave out the ^ if it is a name."
        ) from None
    return [each for each in logical_topics(kafka_topics) if each.has_levels and name.fullmatch(each.name)]


def _partitions(name: str, kafka_topics: Mapping[str, int]) -> Iterator[int]:
    return (kafka_topics[level_topic(name, level)] for level in range(count_levels(name, kafka_topics)))


def _what_to_do(topic: str, kafka_topics: Mapping[str, int], asked: int | None, may_create: bool) -> str:
    kafka_topics = dict(kafka_topics)  # the listed topics are enough for a hint
    name, _, level = topic.rpartition("-")
    if topic in kafka_topics and level.isdecimal() and int(level) < count_levels(name, kafka_topics):
        return f"{topic} is level {int(level)} of {name}. Use {name} instead."
    if topic in kafka_topics:
        return f"{topic} exists without levels. Leave out the number of levels."
    how = _how_to_create(topic, asked) if may_create else "`headway topics list` lists the topics."
    names = [each.name for each in logical_topics(kafka_topics) if each.has_levels or asked is None]
    return f"{near_topic(topic, names)}{how}"


def _how_to_create(topic: str, asked: int | None) -> str:
    if asked is not None or not is_topic_name(level_topic(topic, _SOME_LEVELS - 1)):
        return how_to_create(topic, asked)
    return f"{how_to_create(topic, _SOME_LEVELS)} Leave --levels out for a topic without levels."


def near_topic(topic: str, names: Iterable[str]) -> str:
    """Return a sentence that suggests a similar name, followed by a space, or "" if no name is similar."""
    near = difflib.get_close_matches(topic, names, n=1)
    return f"Did you mean {near[0]}? " if near else ""
