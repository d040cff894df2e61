"""The topics that a command reads or writes: topics with levels, or Kafka topics with one level each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.cli.options.logical_topics import count_levels, require_common_levels
from headway.core.levels.naming import MOST_LEVELS, how_to_create, level_topic
from headway.errors import ConfigError

_EXAMPLE = "payments=2"


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Topics that have `levels` levels each, or topics without levels, each with a level in `priorities`."""

    names: Sequence[str]
    levels: int
    priorities: Mapping[str, int] | None = None

    @property
    def to_subscribe(self) -> Sequence[str] | Mapping[str, int]:
        """The topics, as the argument of a consumer's `subscribe`."""
        return self.names if self.priorities is None else self.priorities

    def kafka_topics(self, level: int) -> list[str]:
        """Return the Kafka topics of a level. Patterns are left out."""
        if self.priorities is not None:
            return [name for name, own in self.priorities.items() if own == level]
        return [level_topic(name, level) for name in self.names if not name.startswith("^")]

    def only_topic(self, level: int) -> str:
        """Return the topic that has this level in `priorities`. Raises `ValueError` if there is not exactly one."""
        found = self.kafka_topics(level)
        if len(found) != 1:
            each = "both" if len(found) == 2 else "all"
            which = f"{' and '.join(found)} {each} have" if found else "no topic has"
            raise ValueError(f"it is for level {level}, which {which}")
        return found[0]


def choose_topics(names: Sequence[str], kafka_topics: Mapping[str, int], levels: int | None) -> TopicChoice:
    """Find the topics for these names. A name can give its topic a level, such as `payments=2`.

    If `levels` is None, a topic counts as one without levels if Kafka lists its bare name but not its lowest level.
    Raises `ConfigError` for topics that do not exist, and for a mixture of topics with and without levels.

    >>> choose_topics(["payments=2", "clicks=0"], {"payments": 1, "clicks": 1}, None)
    TopicChoice(names=['payments', 'clicks'], levels=3, priorities={'payments': 2, 'clicks': 0})
    >>> choose_topics(["orders"], {"orders-0": 1, "orders-1": 1}, None)
    TopicChoice(names=['orders'], levels=2, priorities=None)
    """
    if any("=" in name and not name.startswith("^") for name in names):
        return _with_priorities(dict(topic_and_level(name) for name in names), kafka_topics, levels)
    listed = dict(kafka_topics)  # the names that are known without another request to Kafka
    plain = [name for name in names if levels is None and _is_plain(name, listed)]
    if not plain:
        return TopicChoice(names, require_common_levels(names, kafka_topics, levels))
    if others := [name for name in names if name not in plain]:
        raise ConfigError(
            f"The topic {plain[0]} has no levels, but {others[0]} has. Name topics of one kind, or give each Kafka "
            f"topic a level, such as {_EXAMPLE}."
        )
    return _with_priorities(dict.fromkeys(plain, 0), kafka_topics, None)


def _is_plain(name: str, listed: Mapping[str, int]) -> bool:
    if name not in listed or level_topic(name, 0) in listed:
        return False
    topic, _, level = name.rpartition("-")
    return not (topic and level.isdecimal() and int(level) < count_levels(topic, listed))


def topic_and_level(name: str) -> tuple[str, int]:
    """Split `payments=2` into topic and level. Raises `ConfigError` for any other text."""
    topic, equals, level = name.rpartition("=")
    if not equals or not topic or not level.isdecimal() or len(level) > 3 or int(level) >= MOST_LEVELS:
        raise ConfigError(
            f"The topic {name} needs a level from 0 to {MOST_LEVELS - 1} after its name, such as {_EXAMPLE}. Give "
            "every topic a level, or none of them."
        )
    return topic, int(level)


def _with_priorities(priorities: Mapping[str, int], kafka_topics: Mapping[str, int], levels: int | None) -> TopicChoice:
    if levels is not None:
        raise ConfigError(
            "--levels is for topics with levels, but these topics are each given their own level. Leave out --levels."
        )
    for topic in priorities:
        if topic not in kafka_topics:
            raise ConfigError(f"Kafka has no topic {topic}. {how_to_create(topic)}")
    return TopicChoice(list(priorities), 1 + max(priorities.values()), priorities)
