"""Plans changes of commits: which group gets which commit, and which changes must be refused."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from headway.core.levels.naming import level_group
from headway.errors import ConfigError, KafkaError
from headway.kafka.binding.capi import CommittedOffset, CommittedOffsets, Partition


class OffsetChange(NamedTuple):
    """A commit to make: `offset` with its metadata replaces `before`, which is None if nothing was committed."""

    source: str
    target: str
    partition: Partition
    before: CommittedOffset | None
    offset: int
    metadata: bytes

    @property
    def changes_anything(self) -> bool:
        """True unless the target already has this commit."""
        return self.before != (self.offset, self.metadata)


def level_of(topic: str, given: Mapping[str, int | None]) -> int:
    """Return the level of a Kafka topic: the level in `given`, or by default the suffix of the topic's name.

    >>> level_of("emails", {"emails": 2}), level_of("orders-1", {})
    (2, 1)

    Raises `ConfigError` for a topic without a level.
    """
    level = given.get(topic)
    if level is not None:
        return level
    name, _, number = topic.rpartition("-")
    if name and number.isdecimal():
        return int(number)
    raise ConfigError(f"The level of {topic} is not known. Give it as --topic {topic}=2, or leave out --to-levels.")


def level_groups(base: str, groups: Iterable[str]) -> dict[str, int]:
    """Return the groups that read one level of `base`, each with its level.

    >>> level_groups("tasks", ["tasks", "tasks-0", "tasks-10", "tasks-x", "other-1"])
    {'tasks-0': 0, 'tasks-10': 10}
    """
    found = {name: name.removeprefix(f"{base}-") for name in groups if name.startswith(f"{base}-")}
    numbers = {name: int(number) for name, number in found.items() if number.isdecimal()}
    in_order = sorted(numbers.items(), key=itemgetter(1))
    return {name: level for name, level in in_order if level_group(base, level) == name}


def chosen_commits(
    commits: Mapping[str, CommittedOffsets], of_levels: Mapping[str, int], given: Mapping[str, int | None]
) -> dict[Partition, tuple[str, CommittedOffset]]:
    """Select the commits for the given topics, or for all topics, each with the group that has it.

    Raises `ConfigError` if the groups of two levels have commits for the same partition, and no level was given for the
    topic.
    """
    found: dict[Partition, tuple[str, CommittedOffset]] = {}
    for group, of_group in commits.items():
        for partition, commit in of_group.items():
            topic = partition[0]
            if given and topic not in given:
                continue
            if group in of_levels and given.get(topic) not in (None, of_levels[group]):
                continue
            if partition in found:
                raise ConfigError(
                    f"Both {found[partition][0]} and {group} have commits for {topic}. Choose a level, such as "
                    f"--topic {topic}={of_levels[group]}."
                )
            found[partition] = group, commit
    return found


def copies(
    found: Mapping[Partition, tuple[str, CommittedOffset]],
    target_of: Callable[[str], str],
    there: Callable[[str, Sequence[Partition]], CommittedOffsets],
) -> list[OffsetChange]:
    """Return the changes that give the targets these commits.

    `there` returns the commits that a target already has.
    """
    by_target: dict[str, list[Partition]] = {}
    for partition in sorted(found):
        by_target.setdefault(target_of(partition[0]), []).append(partition)
    changes: list[OffsetChange] = []
    for target, partitions in by_target.items():
        before = there(target, partitions)
        for partition in partitions:
            source, (offset, metadata) = found[partition]
            changes.append(OffsetChange(source, target, partition, before.get(partition), offset, metadata))
    return [change for change in changes if change.source != change.target]


def refuse_to_replace(changes: Iterable[OffsetChange]) -> None:
    """Raise `KafkaError` if a change would replace a different commit."""
    for change in changes:
        if change.before is not None and change.changes_anything:
            topic, number = change.partition
            raise KafkaError(
                f"The group {change.target} has already committed offset {change.before[0]:,} for partition {number} "
                f"of {topic}, and {change.source} has {change.offset:,}. Nothing was copied. --overwrite replaces it."
            )
