"""Watches the ids of a member's topics, which distinguish a topic from an earlier topic with the same name.

Kafka identifies a topic by its id, but clients identify it by its name. A topic that is deleted and created again keeps
its name and begins at offset 0, so a position, a commit or an offset map of the old topic means nothing in the new one.
librdkafka does not compare ids. If the new log has the old offset, librdkafka continues reading there.
"""

import logging
from collections.abc import Collection, Set
from typing import NamedTuple

from headway.errors import HeadwayError
from headway.kafka.binding.capi import Client
from headway.kafka.binding.questions import FoundTopics, KnownTopic, Question, ask_topics

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""How often a member's topics are checked for changes, in seconds."""
_LOOK_FOR_DELETED_EVERY = 0.5
_TOPICS_A_SECOND = 200.0  # a member with thousands of topics checks less often
_ANSWERED_WITHIN = 5.0
_ANSWERED_AT_ONCE_WITHIN = 1.0
_WAITED_FOR = 1.0  # a partition waits this many seconds for the id of its topic, and is then read without the id


class TopicChanges(NamedTuple):
    """The topics whose ids have changed since the last check, and those that were deleted since then."""

    recreated: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


_NOTHING = TopicChanges()


class TopicIds:
    """Watches the ids of the topics that one client reads, over the client's own connection. Not thread-safe.

    This object keeps the id that a topic had in the first answer. When a topic has been created again, the caller
    creates a new client and a new `TopicIds`.

    Args:
        client: The client, or None if the brokers return no ids, such as librdkafka's mock.
    """

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._ids: dict[str, str] = {}
        self._partitions: dict[str, int] = {}  # the number of partitions of each topic in the first answer
        self._missing: set[str] = set()  # topics that do not exist, according to the latest answer
        self._reported: set[str] = set()  # those missing topics that were already reported
        self._question: Question[FoundTopics] | None = None
        self._asked: Collection[str] = ()  # the topics in the open request
        self._unsettled: set[str] = set()
        self._settled_by = 0.0
        self._look_at = 0.0

    @property
    def known(self) -> Set[str]:
        """The topics whose ids are known."""
        return self._ids.keys()

    def of(self, topic: str) -> str | None:
        """Return the id of a topic, or None if it is not known.

        The id is never newer than the records that were read.
        """
        return self._ids.get(topic)

    def is_new(self, topic: str, partition: int) -> bool:
        """Return whether a partition was added to a topic after the first answer about that topic."""
        return partition >= self._partitions.get(topic, partition + 1)

    def ask_before_start(self, topics: Collection[str], now: float, wake_fd: int | None = None) -> None:
        """Request the ids of topics whose partitions are about to begin, without waiting."""
        if self._client is not None and topics:
            self._unsettled.update(topics)
            self._settled_by = now + _WAITED_FOR
            self._look_at = now
            self._ask(topics, now, wake_fd)

    def is_settled(self, now: float) -> bool:
        """Return whether partitions can begin.

        They can begin when the ids of their topics are known, or have not arrived within a time limit.
        """
        return not self._unsettled or now >= self._settled_by

    def is_due(self, now: float) -> bool:
        """Return whether it is time to call `look`."""
        return self._client is not None and (self._question is not None or now >= self._look_at)

    def look(self, topics: Collection[str], now: float, wake_fd: int | None = None) -> TopicChanges:
        """Return the changes of these topics, without waiting. Sends a request to the brokers every few seconds.

        A topic counts as deleted when it is missing in two consecutive answers, because a broker might not know a new
        topic yet.
        """
        if self._question is None:
            self._ask({*topics, *self._unsettled}, now, wake_fd)
            return _NOTHING
        try:
            answer = self._question.answer()
            if answer is None:
                return _NOTHING
        except HeadwayError as error:
            log.debug("The ids of topics could not be read: %s", error)
            answer = {}  # the request is sent again later
        self._question = None
        self._unsettled.difference_update(self._asked)
        before, self._missing = self._missing, {topic for topic, known in answer.items() if known is None}
        there = {topic: known for topic, known in answer.items() if known is not None}
        for topic, known in there.items():
            self._partitions.setdefault(topic, known.partitions)
        recreated = {topic for topic, known in there.items() if self._is_another(topic, known)}
        deleted = (before & self._missing).intersection(topics) - self._reported
        self._reported = (self._reported | deleted) & self._missing
        every = _LOOK_FOR_DELETED_EVERY if self._missing.intersection(topics) else LOOK_EVERY
        self._look_at = now if self._unsettled else now + max(every, len(topics) / _TOPICS_A_SECOND)
        return TopicChanges(frozenset(recreated), frozenset(deleted)) if recreated or deleted else _NOTHING

    def recreated(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that were deleted and created again. Waits for the brokers for at most a second."""
        if self._client is None or not self._ids.keys() & topics:
            return frozenset()
        question = ask_topics(self._client, topics, _ANSWERED_AT_ONCE_WITHIN)
        try:
            answer = question.answer(_ANSWERED_AT_ONCE_WITHIN)
        except HeadwayError as error:
            log.debug("It is not known whether topics were created again: %s", error)
            answer = None
        finally:
            question.forget()
        return frozenset(topic for topic, known in (answer or {}).items() if known and self._is_another(topic, known))

    def _is_another(self, topic: str, known: KnownTopic) -> bool:
        return known.id is not None and self._ids.setdefault(topic, known.id) != known.id

    def _ask(self, topics: Collection[str], now: float, wake_fd: int | None) -> None:
        if self._client is None or self._question is not None:
            return
        self._look_at = now + LOOK_EVERY
        if topics:
            self._question, self._asked = ask_topics(self._client, topics, _ANSWERED_WITHIN, wake_fd), topics

    def close(self) -> None:
        """Abandon the open request, before the client is closed."""
        question, self._question = self._question, None
        if question:
            question.forget()
