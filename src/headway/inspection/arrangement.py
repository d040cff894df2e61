"""Arranges Kafka's groups and topics as queues: the levels of a topic that one group, or its level groups, read."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from headway.core.levels.naming import level_group, level_topic

_name_and_level = re.compile(r"(.+)-(0|[1-9][0-9]{0,2})").fullmatch


class LevelSource(NamedTuple):
    """A Kafka topic and the group that reads it. `level` is None if the topic has no levels."""

    level: int | None
    kafka_topic: str
    group: str


class QueueSource(NamedTuple):
    """A queue under its logical names, and where its levels are, the highest first."""

    topic: str
    group: str
    levels: tuple[LevelSource, ...]


def levelled_groups(groups: Collection[str]) -> dict[str, int]:
    """Return the groups that have a group for each level, with the number of their levels.

    >>> levelled_groups({"billing-0", "billing-1", "mails", "audit-7"})
    {'billing': 2}
    """
    there = set(groups)
    bases = sorted(each.removesuffix("-0") for each in there if each.endswith("-0") and each != "-0")
    return {base: next(n for n in range(1, len(there) + 2) if level_group(base, n) not in there) for base in bases}


def arrange(read: Mapping[str, Collection[str]], topics: Collection[str]) -> list[QueueSource]:
    """Return the queues of some groups, by topic and group.

    Args:
        read: For each group, the Kafka topics that it has committed for, or that are assigned to its members.
        topics: All Kafka topics. A level that the group has not read yet belongs to the queue as well.

    >>> arrange({"billing-0": ["orders-0"], "billing-1": ["orders-1"]}, {"orders-0", "orders-1"})[0].levels[0]
    LevelSource(level=1, kafka_topic='orders-1', group='billing-1')
    >>> [(queue.topic, len(queue.levels)) for queue in arrange({"mails": ["letters"]}, {"letters"})]
    [('letters', 1)]
    """
    levelled = {base: count for base, count in levelled_groups(read).items() if _reads_its_levels(read, base, count)}
    of_levels = {level_group(base, level) for base, count in levelled.items() for level in range(count)}
    queues = [queue for base, count in levelled.items() for queue in _with_level_groups(read, base, count, topics)]
    queues += [queue for group in read if group not in of_levels for queue in _of_one_group(group, read[group], topics)]
    return sorted(queues)


def _reads_its_levels(read: Mapping[str, Collection[str]], base: str, count: int) -> bool:
    """Return whether one of these groups reads the level of its own number, as level groups do.

    Otherwise the numbers at the ends of their names mean something else.
    """
    return any(topic.endswith(f"-{level}") for level in range(count) for topic in read[level_group(base, level)])


def _with_level_groups(
    read: Mapping[str, Collection[str]], base: str, count: int, topics: Collection[str]
) -> Iterator[QueueSource]:
    levelled, plain = set[str](), defaultdict[str, list[LevelSource]](list)
    for level in range(count):
        group, end = level_group(base, level), f"-{level}"
        for topic in read[group]:
            if topic.endswith(end):
                levelled.add(topic.removesuffix(end))
            else:  # the user has given this level to a topic without levels
                plain[topic].append(LevelSource(level, topic, group))
    for topic in levelled:
        levels = (LevelSource(level, level_topic(topic, level), level_group(base, level)) for level in range(count))
        there = [each for each in levels if each.kafka_topic in topics or each.kafka_topic in read[each.group]]
        yield QueueSource(topic, base, tuple(reversed(there)))
    for topic, sources in plain.items():
        yield QueueSource(topic, base, tuple(reversed(sources)))


def _of_one_group(group: str, read: Collection[str], topics: Collection[str]) -> Iterator[QueueSource]:
    bases = defaultdict[str, set[int]](set)
    for topic in read:
        if match := _name_and_level(topic):
            bases[match[1]].add(int(match[2]))
    levelled = {base for base, levels in bases.items() if 0 in levels}
    for base in levelled:
        there = (level for level in range(max(bases[base]) + 1) if level in bases[base] or f"{base}-{level}" in topics)
        levels = [LevelSource(level, level_topic(base, level), group) for level in there]
        yield QueueSource(base, group, tuple(reversed(levels)))
    for topic in read:
        if not ((match := _name_and_level(topic)) and match[1] in levelled):
            yield QueueSource(topic, group, (LevelSource(None, topic, group),))
