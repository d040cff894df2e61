"""A watch for topics that were deleted, or created again, while they are read, and for lines that were added.

The consumer may not notice: if the new topic already has as many records as were read of the old one, the consumer
goes on behind them. Those records would never be delivered. Only Kafka's topic ids show the change.
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

_LOOK_AT_TOPICS_EVERY = 5.0


class _Answer(NamedTuple):
    ids: dict[str, str]
    lines: set[str]


class TopicWatch:
    """A thread that asks for a scheduler's topics every few seconds, and wakes the relay after each answer."""

    def __init__(self, config: Config, names: TopicNames, wake: Wakeup) -> None:
        self._config = config
        self._names = names
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "headway-relay-topics")
        self._admin: Admin | None = None
        self._expected: Mapping[str, str] = {}
        self._known: set[str] = set()
        self._missing: set[str] = set()
        self._have_come = False
        self._asked: Future[_Answer] | None = None
        self._look_at = 0.0

    def expect(self, ids: Mapping[str, str], others: Collection[str], now: float) -> None:
        """Look from now on for other ids of these topics, and for lines beside them and these others."""
        self._expected = ids
        self._known = {*ids, *others}
        self._missing = set()
        self._have_come = False
        self._asked = None
        self._look_at = now + _LOOK_AT_TOPICS_EVERY

    def found(self, now: float) -> str | None:
        """Return what became of a topic since `expect`, as a clause; None if all are as expected. Never waits.

        A topic counts as deleted when two answers in a row lack it: a broker may be late to learn of a new one.
        """
        if self._asked is None:
            if self._expected and now >= self._look_at:
                self._asked = self._thread.submit(self._ask, [*self._expected])
                self._asked.add_done_callback(lambda _: self._wake.set())
            return None
        if not self._asked.done():
            return None
        (ids, lines), self._asked, self._look_at = self._asked.result(), None, now + _LOOK_AT_TOPICS_EVERY
        if not ids:
            return None
        self._have_come = not lines.issubset(self._known)
        missing_again = self._missing.difference(ids)
        self._missing = set(self._expected).difference(ids)
        for topic, expected in sorted(self._expected.items()):
            if ids.get(topic, expected) != expected:
                return f"{topic} was deleted and made anew"
            if topic in missing_again:
                return f"{topic} was deleted"
        return None

    def have_come(self) -> bool:
        """Return whether the latest answer has lines that were not expected; True once for each answer."""
        have_come, self._have_come = self._have_come, False
        return have_come

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, topics: list[str]) -> _Answer:
        try:
            self._admin = self._admin or Admin(self._config)
            lines = set(map(self._names.line, self._names.lines_of(self._admin.topics())))
            return _Answer(self._admin.topic_ids(topics), lines)
        except HeadwayError as error:
            self._admin = None  # librdkafka's admin client may keep asking a broker that is gone
            log.debug("The ids of the topics are not known: %s", error)
            return _Answer({}, set())
