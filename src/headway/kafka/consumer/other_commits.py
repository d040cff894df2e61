"""Checks whether a new group would skip commits that the same consumer has made in another group.

A consumer has either a group for each level (`billing-0` …), or one group for all levels (`billing`). After a change
from one to the other, or when an existing topic gets levels, the commits are in the other group. Without this check,
records would be handled twice, or never.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.levels.naming import level_group
from headway.errors import ConfigError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.factory import make_client
from headway.kafka.consumer.group_client import GroupClient
from headway.kafka.coordinator import ask_for_members_of, coordinator_client
from headway.kafka.missing_permissions import is_refusal
from headway.kafka.reading.group_state import NO_GROUP, is_gone
from headway.settings.config import settings_beside

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription

log = logging.getLogger(__name__)

_ANSWERS_WITHIN = 5.0


class OtherCommits:
    """Checks for commits in other groups, which would read the same partitions if `group.per.level` were changed.

    The check is made when the client's own group has no commits of these partitions. If the client's own group is
    `base`, the name that the user gave, the groups of the levels are checked. If it is the group of a level, `base` is
    checked.

    All topics of the consumer are checked, including those of levels that other members read. Otherwise one level might
    start before the commits of another level are found. By default, topics with levels are read with a group for each
    level. Such topics are not checked, because most of their users never had another group, and the check would need a
    further permission.
    """

    def __init__(self, client: GroupClient, base: str) -> None:
        self._client = client
        self._config = settings_beside(client.config)
        self._base = base
        self._per_level = client.group != base
        self._seen: set[str] = set()  # topics for which no commit would be skipped

    def check(self, missing: Collection[Partition]) -> None:
        """Raise `ConfigError` if other groups have commits that would be skipped.

        `missing` are partitions that have no commit and are about to start. Raises `KafkaError` if Kafka has not
        answered yet.
        """
        subscription = self._client.addresses.subscription
        if self._per_level and subscription.has_level_topics:
            return
        topics = {topic for topic, _ in missing}.union(subscription.all_topics) - self._seen
        levels = {topic: _level_of(topic, subscription) for topic in topics}
        of_others = _by_group(levels, self._other_group)
        for group in self._existing(of_others):
            theirs = self._topics_committed(group, of_others[group])
            of_own = _by_group({topic: levels[topic] for topic in theirs}, self._own_group)
            ours = [self._topics_committed(own, of_one) for own, of_one in of_own.items()]
            if passed := theirs.difference(*ours):
                raise ConfigError(self._sentence(group, {topic: levels[topic] for topic in sorted(passed)}))
        self._seen.update(topics)

    def _own_group(self, level: int) -> str:
        return level_group(self._base, level) if self._per_level else self._base

    def _other_group(self, level: int) -> str:
        return self._base if self._per_level else level_group(self._base, level)

    def _topics_committed(self, group: str, topics: Collection[str]) -> set[str]:
        """Return the topics for which a group has commits."""
        client = make_client(cimpl.Consumer, {**self._config, "group.id": group, "enable.auto.commit": False})
        try:
            told = [client.list_topics(topic, timeout=_ANSWERS_WITHIN).topics[topic] for topic in topics]
            partitions = [(str(each.topic), number) for each in told for number in each.partitions]
            committed = capi.committed(client, partitions, _ANSWERS_WITHIN) if partitions else {}
        except ck.KafkaException as error:
            raise KafkaError(
                f"The number of partitions of the topics could not be read: {error.args[0].str()}."
            ) from error
        finally:
            client.close()
        return {topic for (topic, _), commit in committed.items() if commit is not None}

    def _existing(self, groups: Collection[str]) -> list[str]:
        """Return the groups that exist, without those that this client is not permitted to see."""
        if not groups:
            return []
        # The request ends when the client is destroyed, so this variable keeps it alive.
        client = coordinator_client(self._config)
        deadline = time.monotonic() + _ANSWERS_WITHIN
        answers = ask_for_members_of(client, groups)
        return [group for group, asked in answers.items() if _exists(group, asked, deadline - time.monotonic())]

    def _sentence(self, group: str, levels: Mapping[str, int]) -> str:
        own = self._own_group(next(iter(levels.values())))
        owner, other = ("level's group", "group") if self._per_level else ("group", "level's group")
        if self._per_level:
            of_levels = " ".join(f"--topic {topic}={level}" for topic, level in levels.items())
            keep = f"group.per.level to false to continue with the one group {group} for all levels"
            copy = f"{group} {self._base} --to-levels {of_levels}"
        else:
            keep = "group.per.level to true to continue with a group for each level"
            copy = f"{self._base} {self._base} --from-levels"
        resets = [
            f"`headway offsets reset {name} {' '.join(f'--topic {topic}' for topic in of_one)} --earliest`"
            for name, of_one in _by_group(levels, self._own_group).items()
        ]
        return (
            f"The {other} {group} has commits of {' and '.join(levels)}, but the {owner} {own} has none, so the "
            f"consumer would start without these commits. Set {keep}, or copy the commits with "
            f"`headway offsets copy {copy}`, or start from the beginning with {' and '.join(resets)}."
        )


def _level_of(topic: str, subscription: GroupSubscription) -> int:
    level = subscription.all_topics.get(topic)
    return subscription.address(topic)[1] if level is None else level


def _by_group(levels: Mapping[str, int], group_of: Callable[[int], str]) -> dict[str, list[str]]:
    """Group the topics by their consumer group, which depends on a topic's level."""
    by_group: dict[str, list[str]] = {}
    for topic, level in levels.items():
        by_group.setdefault(group_of(level), []).append(topic)
    return by_group


def _exists(group: str, asked: "Future[ConsumerGroupDescription]", timeout: float) -> bool:
    try:
        return not is_gone(asked.result(max(0.0, timeout)))
    except TimeoutError:
        raise KafkaError(f"The coordinator of the group {group} does not answer yet.") from None
    except ck.KafkaException as error:
        cause = error.args[0]
        if cause.code() in NO_GROUP:
            return False
        if is_refusal(cause):
            log.info(
                "The commits of the group %s were not checked, because this client is not permitted to see the group.",
                group,
            )
            return False
        raise KafkaError(f"The coordinator could not describe the group {group}: {cause.str().rstrip('.')}.") from error
