"""Notices that a topic was deleted and made anew while it is read.

The consumer need not notice: where the new topic has as many records by then as were read of the old one, it goes on
behind them, and they would never be delivered. Kafka's ids of the topics tell, and somebody has to ask for them.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from headway.config import Config
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0


class RemadeTopics:
    """Asks for Kafka's ids of some topics every few seconds, in a thread of its own, and wakes who is to hear of it."""

    def __init__(self, config: Config, wake: Wakeup) -> None:
        self._config = config
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "headway-topic-ids")
        self._admin: Admin | None = None
        self._expected: Mapping[str, str] = {}
        self._asked: Future[dict[str, str]] | None = None
        self._look_at = 0.0

    def expect(self, ids: Mapping[str, str], now: float) -> None:
        """Look from now on whether these topics have other ids."""
        self._expected = ids
        self._asked = None
        self._look_at = now + _LOOK_EVERY

    def found(self, now: float) -> list[str]:
        """Return the topics that were made anew since `expect`, sorted; never waits."""
        if self._asked is None:
            if self._expected and now >= self._look_at:
                self._asked = self._thread.submit(self._ask, list(self._expected))
                self._asked.add_done_callback(lambda _: self._wake.set())
            return []
        if not self._asked.done():
            return []
        ids, self._asked, self._look_at = self._asked.result(), None, now + _LOOK_EVERY
        return sorted(topic for topic, expected in self._expected.items() if ids.get(topic, expected) != expected)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, topics: list[str]) -> dict[str, str]:
        try:
            self._admin = self._admin or Admin(self._config)
            return self._admin.topic_ids(topics)
        except HeadwayError as error:
            self._admin = None  # librdkafka's admin client may keep asking a broker that is not asked any more
            log.debug("The ids of the topics are not known: %s", error)
            return {}
