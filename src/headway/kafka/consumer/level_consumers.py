"""Manages the members that read all levels: one member for the group of each level, or one member for all levels."""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.levels.naming import LevelSubscription, groups_of, how_to_create, is_topic_name
from headway.errors import ConfigError
from headway.kafka.binding.capi import CommittedOffsets
from headway.kafka.consumer.commits import SentCommit
from headway.kafka.consumer.group_client import GroupClient
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.consumer.membership import SERVE_EVERY, RebalanceListener
from headway.kafka.serialization import key_reader, value_reader
from headway.records.record_types import TopicPartition
from headway.settings.config import Config, ConsumerSettings, ParallelSettings

log = logging.getLogger(__name__)

END_WITHIN = 10.0
"""How long closing a consumer may take for the last commits and for leaving all groups, in seconds."""

_OURS: Config = {"enable.auto.commit": False, "enable.auto.offset.store": False}

T = TypeVar("T")
Partitions = Iterable[TopicPartition]


class MemberOffsets(NamedTuple):
    """The offsets of one member's levels, to be committed in a transaction, and the metadata of its group."""

    levels: Collection[int]
    offsets: CommittedOffsets
    group_metadata: bytes


class LevelConsumers:
    """The members that read the levels, from the lowest level to the highest, or one member for all levels.

    Iteration yields the members. Indexing by a level returns the member that reads it.
    """

    def __init__(self, members: Sequence[LevelConsumer]) -> None:
        self._members = members
        self._of_level = {level: member for member in members for level in member.levels}

    def __iter__(self) -> Iterator[LevelConsumer]:
        return iter(self._members)

    def __reversed__(self) -> Iterator[LevelConsumer]:
        return reversed(self._members)

    def __getitem__(self, level: int) -> LevelConsumer:
        if level not in self._of_level:
            raise ConfigError(f"Level {level} does not exist; the levels are numbered from 0 to {self.count - 1}.")
        return self._of_level[level]

    @property
    def count(self) -> int:
        """The number of levels."""
        return len(self._of_level)

    def highest_first(self) -> Iterator[tuple[int, LevelConsumer]]:
        """Yield each level and its member, beginning with the highest level."""
        return reversed(list(self._of_level.items()))

    def with_same_member(self, levels: Iterable[int]) -> set[int]:
        """Return these levels, and all further levels that the same members read.

        Levels with the same member also share a group.
        """
        return {each for level in levels for each in self[level].levels}

    def subscribe(self, subscriptions: Sequence[LevelSubscription], listener: RebalanceListener) -> None:
        """Join the groups to read the topics of each level. A member without topics leaves its group."""
        parts = [GroupSubscription.of(member.levels, subscriptions) for member in self._members]
        for member, subscription in zip(self._members, parts, strict=True):
            member.subscribe(subscription, listener)

    def unsubscribe(self) -> None:
        """Leave all groups at the same time, and wait until this is done and the listener was called."""
        self._leave(self._members, time.monotonic() + END_WITHIN)

    def _leave(self, members: Sequence[LevelConsumer], until: float) -> None:
        began = time.monotonic()
        for member in members:
            member.membership.begin_to_leave()
        leaving = list(members)
        while leaving and (now := time.monotonic()) < until:
            patience = SERVE_EVERY / len(leaving)
            leaving = [member for member in leaving if not member.membership.has_left(now - began, patience)]
        for member in members:
            member.membership.forget_group()

    def close(self, until: float) -> None:
        """Leave all groups at the same time, and close all members. Waits until the time `until`.

        If a group is rebalancing or its coordinator cannot be reached, leaving it may take longer, and then continues
        in threads that end with the process.
        """
        try:
            # After an interrupt, `close` is called again. The second call must not use members that are already
            # closing.
            still_open = [member for member in self._members if not member.is_closing]
            self._leave([member for member in still_open if not member.membership.is_static], until)
            for member in still_open:
                if member.membership.is_static:
                    member.membership.step_aside(until)
        finally:  # this must happen even after Ctrl-C
            closing = [member.close() for member in self._members]
        for thread in closing:
            thread.join(max(0.0, until - time.monotonic()))
        of_each = zip(self._members, closing, strict=True)
        if left := [member.client.group for member, thread in of_each if thread.is_alive()]:
            log.warning(
                "The coordinator of the %s %s has not confirmed in time that this consumer left. The consumer closes "
                "anyway. If the coordinator has not received the request, the consumer's partitions are not "
                "read until its session.timeout.ms is over.",
                *("group" if len(left) == 1 else "groups", ", ".join(left)),
            )

    def of(self, partition: TopicPartition) -> LevelConsumer:
        """Return the member to which a partition is assigned.

        Raises `ConfigError` if it is not assigned to this consumer.
        """
        member = self[partition.level]
        if partition not in member.membership.assigned:
            raise ConfigError(
                f"Partition {partition.partition} of {partition.topic} at level {partition.level} is not assigned to "
                "this consumer now. assignment() returns the assigned partitions."
            )
        return member

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions of all levels."""
        return set().union(*(member.membership.assigned for member in self._members))

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions of all levels."""
        return set().union(*(member.paused for member in self._members))

    def chosen(
        self, partitions: Partitions | None, level: int | None, topic: str | None = None
    ) -> dict[LevelConsumer, set[TopicPartition]]:
        """Return the selected partitions, grouped by member.

        The result has the given `partitions`. If `partitions` is None, the result has all assigned partitions, or only
        those of the level and the topic.
        """
        if partitions is None:
            members = self._members if level is None else [self[level]]
            return {
                member: {
                    each
                    for each in member.membership.assigned
                    if topic in (None, each.topic) and level in (None, each.level)
                }
                for member in members
            }
        by_member: dict[LevelConsumer, set[TopicPartition]] = {}
        for partition in partitions:
            by_member.setdefault(self.of(partition), set()).add(partition)
        return by_member

    def positions(self, levels: Collection[int] | None = None) -> dict[TopicPartition, int]:
        """Return the next offset to fetch from each partition of these levels, or of all levels."""
        positions: dict[TopicPartition, int] = {}
        for member in self._members:
            if levels is None:
                positions |= member.positions()
            elif not set(levels).isdisjoint(member.levels):
                positions |= {each: offset for each, offset in member.positions().items() if each.level in levels}
        return positions

    # Requests for offsets and partitions

    def commit(self, offsets: Mapping[TopicPartition, int]) -> SentCommit:
        """Commit offsets to the groups of their levels, without waiting for the answers."""
        return SentCommit([client.commit(of_member) for client, of_member in self._by_client(offsets)])

    def committed(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, or None if there is no commit."""
        wanted = dict.fromkeys(partitions, 0)
        return self._ask(wanted, lambda client, of_member: client.committed(of_member, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after a time, or None if there is no such record.

        Times are in milliseconds since the epoch.
        """
        return self._ask(times, lambda client, of_member: client.offsets_for_times(of_member, timeout))

    def bounds(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset of each partition and the one after its last."""
        _require_names(each.topic for each in partitions)
        return {each: self[each.level].client.bounds(each, timeout) for each in partitions}

    def partitions_for(self, topic: str, timeout: float) -> list[TopicPartition]:
        """Return the partitions of a topic on all levels on which this consumer reads the topic."""
        _require_names([topic])
        return [
            TopicPartition(topic, partition=partition, level=level)
            for level in sorted(self._of_level)
            for partition in range(self[level].client.partition_count(topic, level, timeout))
        ]

    def for_transaction(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> list[MemberOffsets]:
        """Return the offsets of each member for a transactional producer.

        Raises `ConfigError` if the offsets include a topic that this consumer does not read.
        """
        self.require_read(commits)
        return [
            MemberOffsets(
                {each.level for each in of_member}, client.addresses.commits(of_member), client.group_metadata
            )
            for client, of_member in self._by_client(commits)
        ]

    def require_read(self, partitions: Partitions) -> None:
        """Raise `ConfigError` if the offsets include a topic that this consumer does not read on that level.

        Without this check, the group would store the offsets without an error.
        """
        for each in partitions:
            member = self[each.level]
            is_read = member.client.addresses.subscription.reads(each.topic, each.level)
            # After a topic was removed from the subscription, its partitions stay assigned until the group has
            # rebalanced.
            if not is_read and each not in member.membership.assigned:
                raise ConfigError(
                    f"Partition {each.partition} of {each.topic} at level {each.level} cannot be committed: this level "
                    f"does not read {each.topic} now. partitions_for({each.topic!r}) shows the levels that do."
                )

    def _by_client(self, of_all: Mapping[TopicPartition, T]) -> list[tuple[GroupClient, dict[TopicPartition, T]]]:
        by_client: dict[GroupClient, dict[TopicPartition, T]] = {}
        for partition in sorted(of_all, key=attrgetter("level")):
            by_client.setdefault(self[partition.level].client, {})[partition] = of_all[partition]
        return list(by_client.items())

    def _ask(
        self,
        of_all: Mapping[TopicPartition, int],
        ask: Callable[[GroupClient, dict[TopicPartition, int]], dict[TopicPartition, int | None]],
    ) -> dict[TopicPartition, int | None]:
        _require_names(each.topic for each in of_all)
        answers: dict[TopicPartition, int | None] = {}
        for client, of_member in self._by_client(of_all):
            answers |= ask(client, of_member)
        return answers


def _require_names(topics: Iterable[str]) -> None:
    """Raise `ConfigError` for a name that no topic can have, because the binding might fail on such names."""
    for topic in topics:
        if not is_topic_name(topic):
            raise ConfigError(f"The topic {topic!r} cannot be looked up. {how_to_create(topic)}")


def members_of(settings: ConsumerSettings | ParallelSettings, own: Config | None = None) -> LevelConsumers:
    """Create the members for the settings of a consumer: one for the group of each level, or one for all levels."""
    groups = groups_of(settings.group, settings.levels, per_level=settings.group_per_level)
    numbers = range(settings.levels or 1)
    of_each = [[level] for level in numbers] if len(groups) == len(numbers) else [list(numbers)]
    config = {**settings.kafka, **_client_id(settings.kafka), **_OURS, **(own or {})}
    readers = key_reader(settings.key_deserializer), value_reader(settings.value_deserializer)
    base = None if settings.levels is None else settings.group
    members = list[LevelConsumer]()
    try:
        for name, of_one in zip(groups, of_each, strict=True):
            members.append(LevelConsumer(of_one, {**config, "group.id": name}, readers, base))
    except BaseException:
        # The error's traceback and a reference cycle would keep the members and the threads of their clients alive.
        for member in members:
            member.close()
        raise
    return LevelConsumers(members)


def _client_id(config: Config) -> Config:
    """Return a setting with a `client.id` that no other member has, and that begins with the user's own `client.id`.

    In a classic group, the ids of the members begin with their `client.id`, and assignors sort members by their ids.
    With a unique `client.id`, a consumer has the same rank in the group of every level, so the consumer is assigned the
    same partitions of all levels. A member with a `group.instance.id` is sorted by that id, so its `client.id` is left
    unchanged.
    """
    if config.get("group.instance.id"):
        return {}
    return {"client.id": f"{config.get('client.id') or 'headway'}-{uuid.uuid4().hex[:12]}"}
