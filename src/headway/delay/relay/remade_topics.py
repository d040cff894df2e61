"""A watch for topics that were deleted and created again while they are read, and for lines that were added.

The consumer may not notice: if the new topic already has as many records as were read of the old one, the consumer
goes on behind them. Those records would never be delivered. Only Kafka's topic ids show the change.
"""

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from headway.config import Config
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

_LOOK_AT_TOPICS_EVERY = 5.0


class RemadeTopics:
    """A thread that asks for Kafka's ids of some topics every few seconds, and wakes the relay after each answer."""

    def __init__(self, config: Config, wake: Wakeup) -> None:
        self._config = config
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "headway-topic-ids")
        self._admin: Admin | None = None
        self._expected: Mapping[str, str] = {}
        self._to_come: Collection[str] = ()
        self._have_come = False
        self._asked: Future[dict[str, str]] | None = None
        self._look_at = 0.0

    def expect(self, ids: Mapping[str, str], to_come: Collection[str], now: float) -> None:
        """Look from now on for other ids of these topics, and for topics that do not exist yet."""
        self._expected, self._to_come = ids, to_come
        self._have_come = False
        self._asked = None
        self._look_at = now + _LOOK_AT_TOPICS_EVERY

    def found(self, now: float) -> list[str]:
        """Return the topics that were created again since `expect`, sorted; never wait."""
        if self._asked is None:
            if self._expected and now >= self._look_at:
                self._asked = self._thread.submit(self._ask, [*self._expected, *self._to_come])
                self._asked.add_done_callback(lambda _: self._wake.set())
            return []
        if not self._asked.done():
            return []
        ids, self._asked, self._look_at = self._asked.result(), None, now + _LOOK_AT_TOPICS_EVERY
        self._have_come = not ids.keys().isdisjoint(self._to_come)
        return sorted(topic for topic, expected in self._expected.items() if ids.get(topic, expected) != expected)

    def have_come(self) -> bool:
        """Return whether topics that were to come exist by the latest answer; True once for each answer."""
        have_come, self._have_come = self._have_come, False
        return have_come

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, topics: list[str]) -> dict[str, str]:
        try:
            self._admin = self._admin or Admin(self._config)
            return self._admin.topic_ids(topics)
        except HeadwayError as error:
            self._admin = None  # librdkafka's admin client may keep asking a broker that is gone
            log.debug("The ids of the topics are not known: %s", error)
            return {}
