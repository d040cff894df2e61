"""Selects topics and partitions by the options `subscribe`, `subscribePattern`, `assign` and `priorities`."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headway.core.levels.naming import level_topic
from headway.errors import ConfigError, KafkaError
from headway.kafka.reading.catalog import Catalog, TopicLevels
from headway.kafka.reading.topic_naming import TopicNaming
from headway.spark.option_parsing import json_object, topic_priorities

NAMES = ("subscribe", "subscribePattern", "assign", "priorities")
_ASSIGN_EXAMPLE = '{"orders": [0, 1]}: topic, partitions of every level'


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected topics, given by their names or by a pattern.

    If `assigned` is given, only these partitions of the topics are read. With the option `priorities`, the attribute
    `priorities` has the level of each topic.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    priorities: Mapping[str, int] | None = None

    def find(self, catalog: Catalog, naming: TopicNaming) -> TopicLevels:
        """Return the selected partitions. Raises `KafkaError` if a named topic, level or partition does not exist.

        A topic that matches a pattern is selected only if all its levels exist.
        """
        if self.pattern is not None:
            seen = catalog.topics().seen  # a matching topic might be deleted before the next request
            return catalog.find(_matching(self.pattern, seen, naming.levels), naming, may_be_gone=True)
        found = catalog.find(self.topics, naming)
        return found if self.assigned is None else _only(self.assigned, found, naming.levels or 1)

    def none_found(self, naming: TopicNaming) -> str:
        """Return the beginning of a sentence about a pattern that no topic matches."""
        having = "" if naming.levels is None else f" and has {naming.levels} levels"
        return f"No topic in Kafka matches subscribePattern={self.pattern!r}{having}"


def parse_selection(options: Mapping[str, str]) -> Selection:
    """Parse the selection from options whose names are in lower case.

    Raises `ConfigError` unless exactly one of the options that select topics is given.
    """
    given = [name for name in NAMES if options.get(name.lower(), "").strip()]
    if len(given) != 1:
        raise ConfigError(
            f"The headway source needs exactly one of the options {', '.join(NAMES[:-1])} and {NAMES[-1]}, but "
            f"{'none was' if not given else ' and '.join(given) + ' were'} given. Select the topics to read, as in "
            '.option("subscribe", "orders").'
        )
    value = options[given[0].lower()].strip()
    if given[0] == "subscribe":
        return Selection(topics=_names(value))
    if given[0] == "assign":
        assigned = _assigned(value)
        return Selection(topics=tuple(assigned), assigned=assigned)
    if given[0] == "priorities":
        priorities = topic_priorities(value)
        return Selection(topics=tuple(priorities), priorities=priorities)
    return Selection(pattern=_pattern(value))


def _names(value: str) -> tuple[str, ...]:
    topics = dict.fromkeys(topic for topic in map(str.strip, value.split(",")) if topic)
    if not topics:
        raise ConfigError(f"The option `subscribe` is {value!r}. Name one or more topics, separated by commas.")
    return tuple(topics)


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(
            f"The option `subscribePattern` is {value!r}, which is not a valid regular expression: {error}. The "
            "expression must match the whole name of a topic, without its level, such as shop_.*."
        ) from None
    return value


def _assigned(value: str) -> dict[str, tuple[int, ...]]:
    form = json_object("assign", value, _ASSIGN_EXAMPLE)
    for partitions in form.values():
        if not isinstance(partitions, list) or not all(type(each) is int and each >= 0 for each in partitions):
            raise ConfigError(f"The option `assign` is {value!r}; it must be JSON, such as {_ASSIGN_EXAMPLE}.")
    if not any(form.values()):
        raise ConfigError(
            f"The option `assign` is {value!r}, which names no partition. Name at least one, such as {_ASSIGN_EXAMPLE}."
        )
    return {topic: tuple(partitions) for topic, partitions in form.items()}


def _matching(pattern: str, kafka_topics: Collection[str], levels: int | None) -> list[str]:
    if levels is None:
        return sorted(topic for topic in kafka_topics if re.fullmatch(pattern, topic) and not topic.startswith("__"))
    lowest = (name.removesuffix("-0") for name in kafka_topics if name.endswith("-0") and not name.startswith("__"))
    return sorted(
        topic
        for topic in lowest
        if re.fullmatch(pattern, topic) and all(level_topic(topic, level) in kafka_topics for level in range(levels))
    )


def _only(assigned: Mapping[str, tuple[int, ...]], found: TopicLevels, levels: int) -> TopicLevels:
    wanted = {(topic, partition) for topic, partitions in assigned.items() for partition in partitions}
    kept = [each for each in found.partitions if (each.topic, each.partition) in wanted]
    levels_of = Counter((each.topic, each.partition) for each in kept)
    for topic, partition in sorted(wanted):
        if (there := levels_of[topic, partition]) < levels:
            raise KafkaError(
                f"The option `assign` names partition {partition} of {topic}, which {levels - there} of its {levels} "
                "levels do not have. Remove this partition from the option, or give every level the same number of "
                "partitions."
            )
    return TopicLevels(kept, found.topic_ids)
