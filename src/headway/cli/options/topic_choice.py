"""The topics that a command reads or writes: topics with levels, or topics under their own names with a level each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.cli.options.logical_topics import count_levels, require_common_levels
from headway.core.levels.naming import MOST_LEVELS, how_to_create, level_topic
from headway.errors import ConfigError

_EXAMPLE = "payments=2"


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Topics at `levels` level topics each, or under their own names as `priorities` says."""

    names: Sequence[str]
    levels: int
    priorities: Mapping[str, int] | None = None

    @property
    def to_subscribe(self) -> Sequence[str] | Mapping[str, int]:
        """The topics as a consumer's `subscribe` takes them."""
        return self.names if self.priorities is None else self.priorities

    def kafka_topics(self, level: int) -> list[str]:
        """Return the Kafka topics of a level, except for patterns."""
        if self.priorities is not None:
            return [name for name, own in self.priorities.items() if own == level]
        return [level_topic(name, level) for name in self.names if not name.startswith("^")]

    def only_topic(self, level: int) -> str:
        """Return the one topic under its own name that has this level; raise `ValueError` if there is none."""
        found = self.kafka_topics(level)
        if len(found) != 1:
            which = "no topic has" if not found else f"{' and '.join(found)} both have"
            raise ValueError(f"it is for level {level}, which {which}")
        return found[0]


def choose_topics(names: Sequence[str], kafka_topics: Mapping[str, int], levels: int | None) -> TopicChoice:
    """Return the topics of these names, of which each may have a level, as `payments=2`.

    Without levels in the names and without `levels`, a topic is taken under its own name if Kafka lists that, and
    not its lowest level. Raises `ConfigError` for topics that Kafka does not have, and for a mixture of both kinds.

    >>> choose_topics(["payments=2", "clicks=0"], {"payments": 1, "clicks": 1}, None)
    TopicChoice(names=['payments', 'clicks'], levels=3, priorities={'payments': 2, 'clicks': 0})
    >>> choose_topics(["orders"], {"orders-0": 1, "orders-1": 1}, None)
    TopicChoice(names=['orders'], levels=2, priorities=None)
    """
    if any("=" in name and not name.startswith("^") for name in names):
        return _with_priorities(dict(topic_and_level(name) for name in names), kafka_topics, levels)
    listed = dict(kafka_topics)  # only of these is it known without a further question
    plain = [name for name in names if levels is None and _is_plain(name, listed)]
    if not plain:
        return TopicChoice(names, require_common_levels(names, kafka_topics, levels))
    if others := [name for name in names if name not in plain]:
        raise ConfigError(
            f"The topic {plain[0]} has no levels, and {others[0]} is to be read with levels. Name one kind at a time, "
            f"or each Kafka topic with a level, as {_EXAMPLE}."
        )
    return _with_priorities(dict.fromkeys(plain, 0), kafka_topics, None)


def _is_plain(name: str, listed: Mapping[str, int]) -> bool:
    if name not in listed or level_topic(name, 0) in listed:
        return False
    topic, _, level = name.rpartition("-")
    return not (topic and level.isdecimal() and int(level) < count_levels(topic, listed))


def topic_and_level(name: str) -> tuple[str, int]:
    """Return the parts of `payments=2`; raise `ConfigError` for another text."""
    topic, equals, level = name.rpartition("=")
    if not equals or not topic or not level.isdecimal() or len(level) > 3 or int(level) >= MOST_LEVELS:
        raise ConfigError(
            f"The topic {name} needs a level from 0 to {MOST_LEVELS - 1} behind its name, as {_EXAMPLE}: either each "
            "topic has one, or none."
        )
    return topic, int(level)


def _with_priorities(priorities: Mapping[str, int], kafka_topics: Mapping[str, int], levels: int | None) -> TopicChoice:
    if levels is not None:
        raise ConfigError("The option --levels is for topics with levels; these are topics with one level each.")
    for topic in priorities:
        if topic not in kafka_topics:
            raise ConfigError(f"Kafka has no topic {topic}. {how_to_create(topic)}")
    return TopicChoice(list(priorities), 1 + max(priorities.values()), priorities)
