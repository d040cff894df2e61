"""Commits the progress of a reader that is not a member of its group, so that Kafka's tools can show its lag."""

import logging
import time
from collections import defaultdict

from confluent_kafka import cimpl

from headway.core.levels.naming import level_group
from headway.core.permissions import Permission
from headway.errors import KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding import capi
from headway.kafka.binding.factory import make_client
from headway.kafka.consumer.commits import AsyncCommits, OffsetsOfCommit, SentCommit
from headway.kafka.reading.topic_naming import kafka_topic
from headway.settings.config import Config

log = logging.getLogger(__name__)

_ANSWERED_WITHIN = 2.0  # seconds
_CHECKED_EVERY = 0.01
_PAUSE_AFTER_REFUSAL = 1.0  # seconds; the coordinator of a new group is not ready at once


class ExternalCommits:
    """Commits offsets to the groups of the levels of `group`, without waiting. An error is logged once.

    A commit that failed, or that was requested before the previous one was answered, is sent by the next call of
    `commit`. So a caller must continue to call `commit` even if there is no progress.

    If `has_levels` is False, the offsets are committed to `group` itself.
    """

    def __init__(self, config: Config, group: str, *, has_levels: bool = True) -> None:
        self._config = {"log_level": 2, **config}
        self._group = group
        self._has_levels = has_levels
        self._consumers: dict[int, cimpl.Consumer] = {}
        self._sent = AsyncCommits(self._send)
        # The offsets of the last commit, or None if that commit was refused.
        self._latest: OffsetsOfCommit | None = None
        self._not_before = 0.0  # the time before which no further commit is sent after an error
        self._complaint = ""

    def commit(self, offsets: OffsetsOfCommit) -> None:
        """Process the answers to earlier commits, and send these offsets if they are new or were refused."""
        self._sent.settle()
        for consumer in self._consumers.values():
            consumer.poll(0)  # without this poll, the client's error and log reports would pile up
        if self._sent or offsets == self._latest or time.monotonic() < self._not_before:
            return
        self._latest = offsets
        self._sent.add(offsets, self._complain)

    def _send(self, offsets: OffsetsOfCommit) -> SentCommit:
        by_level: dict[int, dict[capi.Partition, tuple[int, bytes]]] = defaultdict(dict)
        for at, offset in offsets.items():
            by_level[at.level][kafka_topic(at), at.partition] = offset, b""
        return SentCommit([capi.PendingCommit(self._consumer(level), part) for level, part in by_level.items()])

    def finish(self, offsets: OffsetsOfCommit) -> None:
        """Commit the final offsets, and wait briefly for the answer.

        The wait is short, because nothing depends on the commit.
        """
        deadline = time.monotonic() + _ANSWERED_WITHIN
        self.commit(offsets)
        while (self._sent or self._latest != offsets) and time.monotonic() < deadline:
            time.sleep(_CHECKED_EVERY)
            self.commit(offsets)

    def close(self) -> None:
        """Close the connections. If a commit has no answer yet, it is not known whether the commit is stored."""
        self._sent.forget()
        for consumer in self._consumers.values():
            consumer.close()

    def _consumer(self, level: int) -> cimpl.Consumer:
        if level not in self._consumers:
            settings = {**self._config, "group.id": self._group_of(level), "enable.auto.commit": False}
            self._consumers[level] = make_client(cimpl.Consumer, settings)
        return self._consumers[level]

    def _group_of(self, level: int) -> str:
        return level_group(self._group, level) if self._has_levels else self._group

    def _complain(self, error: Exception | None, offsets: OffsetsOfCommit) -> None:
        if error is None:
            return
        self._latest, self._not_before = None, time.monotonic() + _PAUSE_AFTER_REFUSAL
        if str(error) != self._complaint:
            self._complaint = str(error)
            why = self._missing_permission() or error
            log.warning(
                "The progress of the query could not be committed to the group %s, where Kafka's tools would show "
                "it: %s",
                self._group,
                why,
            )

    def _missing_permission(self) -> str | None:
        """Return a sentence about a missing permission, or None.

        For a missing permission, librdkafka reports only that the commit has timed out.
        """
        groups = [self._group_of(level) for level in self._consumers]
        try:
            missing = Admin(self._config).missing([Permission("Read", "Group", group) for group in groups])
        except KafkaError:
            return None
        return missing.missing(self._config) if missing else None
