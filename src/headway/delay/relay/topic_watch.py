"""Watches for topics that are deleted or recreated while they are read, and for new delay topics.

The consumer might not notice that a topic was recreated: if the new topic already has as many records as the consumer
has read from the old topic, the consumer continues after these records, and they would never be delivered. Only Kafka's
topic ids show the change.
"""

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from headway.delay.topic_names import TopicNames
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config

log = logging.getLogger(__name__)

_ASK_EVERY = 5.0  # the time between two requests, in seconds


class _TopicsSeen(NamedTuple):
    ids: dict[str, str]
    delay_topics: set[str]


class TopicWatch:
    """Requests a scheduler's topics every few seconds, in a thread, and wakes the relay after each response."""

    def __init__(self, config: Config, names: TopicNames, wake: Wakeup) -> None:
        self._config = config
        self._names = names
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "headway-relay-topics")
        self._admin: Admin | None = None
        self._expected: Mapping[str, str] = {}
        self._known: set[str] = set()
        self._missing: set[str] = set()
        self._has_new_delay_topics = False
        self._asked: Future[_TopicsSeen] | None = None
        self._ask_at = 0.0

    def expect(self, ids: Mapping[str, str], others: Collection[str], now: float) -> None:
        """Watch these topics for changed ids, and look for delay topics that are in neither `ids` nor `others`."""
        self._expected = ids
        self._known = {*ids, *others}
        self._missing = set()
        self._has_new_delay_topics = False
        self._asked = None
        self._ask_at = now + _ASK_EVERY

    def found(self, now: float) -> str | None:
        """Return a clause that describes what happened to a topic since `expect`, or None if nothing happened.

        Never waits.

        A topic counts as deleted only if it is missing in two responses in a row, because a broker might get the
        metadata of a new topic late.
        """
        if self._asked is None:
            if self._expected and now >= self._ask_at:
                self._asked = self._thread.submit(self._ask, [*self._expected])
                self._asked.add_done_callback(lambda _: self._wake.set())
            return None
        if not self._asked.done():
            return None
        (ids, delay_topics), self._asked, self._ask_at = self._asked.result(), None, now + _ASK_EVERY
        if not ids:
            return None
        self._has_new_delay_topics = not delay_topics.issubset(self._known)
        missing_again = self._missing.difference(ids)
        self._missing = set(self._expected).difference(ids)
        for topic, expected in sorted(self._expected.items()):
            if ids.get(topic, expected) != expected:
                return f"{topic} was deleted and created again"
            if topic in missing_again:
                return f"{topic} was deleted"
        return None

    def has_new_delay_topics(self) -> bool:
        """Return whether the latest response lists unexpected delay topics.

        Returns True only once for each response.
        """
        has_new_delay_topics, self._has_new_delay_topics = self._has_new_delay_topics, False
        return has_new_delay_topics

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, topics: list[str]) -> _TopicsSeen:
        try:
            self._admin = self._admin or Admin(self._config)
            delay_topics = set(map(self._names.delay_topic, self._names.delay_topics_of(self._admin.topics())))
            return _TopicsSeen(self._admin.topic_ids(topics), delay_topics)
        except HeadwayError as error:
            # Replaced next time, because librdkafka's admin client can keep sending requests to a broker that no longer
            # exists.
            self._admin = None
            log.debug("Cannot read the ids of the topics: %s", error)
            return _TopicsSeen({}, set())
