"""Looks up the partitions of topics in a thread, so that no sending thread has to wait for Kafka's answer."""

import logging
import math
import threading
import time
from typing import Protocol

from headway.core.producer.queues import TopicQueues
from headway.errors import DeliveryError, KafkaError
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.sendable import Sendable
from headway.runtime.flag import WholeCondition
from headway.settings.config import Config

log = logging.getLogger(__name__)

_LEADERS_WITHIN = 0.5
_TOPICS_LISTED_WITHIN = 5.0
# The pauses between requests for a missing topic or for a partition without a leader: the shorter pause during the
# first second, and then the longer one.
_ASK_AGAIN_AFTER = 0.1
_ASK_LATER_AFTER = 1.0
_GIVE_UP_AFTER = "topic.metadata.propagation.max.ms"
_REFRESH_AFTER = "topic.metadata.refresh.interval.ms"

Queues = TopicQueues[Sendable]


class TopicOwner(Protocol):
    """The sender, which a `MetadataWatch` calls in its thread."""

    def topic_found(self, topic: Queues, count: int, leaders: list[int]) -> None:
        """Note how many partitions a topic has, and the leaders of those that have one."""

    def topic_refused(self, topic: Queues, why: str, kind: type[DeliveryError]) -> None:
        """Fail the records of a topic to which no records can be sent. An empty reason means that it is missing."""


class MetadataWatch:
    """Looks up the partitions and leaders of each topic, and again when these may have changed.

    If Kafka refuses the topic's name, or does not permit access, `topic_refused` of the owner is called at once. If the
    topic is missing, it is called after `topic.metadata.propagation.max.ms`, as in librdkafka.
    """

    def __init__(self, client: ProducerClient, config: Config, owner: TopicOwner) -> None:
        self._client = client
        self._owner = owner
        self._give_up_after = int(config.get(_GIVE_UP_AFTER, 30_000)) / 1000
        refresh_after = int(config.get(_REFRESH_AFTER, 300_000)) / 1000
        # -1 means never, as it does in librdkafka.
        self._refresh_after = refresh_after if refresh_after > 0 else math.inf
        self._due: dict[Queues, float] = {}
        self._incomplete_since: dict[Queues, float] = {}
        self._changed = WholeCondition()
        self._stopped = False
        self.thread = threading.Thread(target=self._run, name="headway-topic-watch", daemon=True)
        self.thread.start()

    def add(self, topic: Queues) -> None:
        """Look up a topic as soon as possible."""
        with self._changed:
            self._due.setdefault(topic, 0.0)
            self._changed.notify()

    def stop(self) -> None:
        """Stop the thread. This takes up to half a second if a broker does not answer."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while (topic := self._next()) is not None:
            try:
                again_after = self._ask(topic)
            except KafkaError as error:
                log.debug("The partitions of %s are not known yet: %s", topic.kafka_topic, error)
                again_after = _ASK_AGAIN_AFTER
            except Exception as error:  # an error of one topic must not stop the look-ups of all others
                log.exception("The partitions of %r cannot be looked up.", topic.kafka_topic)
                self._owner.topic_refused(topic, repr(error), DeliveryError)
                again_after = _ASK_LATER_AFTER
            with self._changed:
                self._due[topic] = time.monotonic() + again_after

    def _next(self) -> Queues | None:
        """Wait until a topic must be looked up, and return the topic, or None after the watch was stopped."""
        with self._changed:
            while not self._stopped:
                first = min(self._due, key=self._due.__getitem__, default=None)
                wait = None if first is None else self._due[first] - time.monotonic()
                if first is not None and wait is not None and wait <= 0:
                    return first
                self._changed.wait(None if wait is None or math.isinf(wait) else wait)
        return None

    def _ask(self, topic: Queues) -> float:
        """Look up a topic once, and return the number of seconds after which to look it up again."""
        try:
            count, leaders = self._client.leaders(topic.kafka_topic, _LEADERS_WITHIN)
        except DeliveryError as error:
            self._owner.topic_refused(topic, str(error).rstrip("."), type(error))
            return _ASK_LATER_AFTER
        if count and (count, frozenset(leaders)) != (topic.partition_count, topic.leaders):
            self._client.await_online(topic.kafka_topic, set(leaders).difference(topic.leaders))
            self._owner.topic_found(topic, count, leaders)
        if count and len(leaders) == count:
            self._incomplete_since.pop(topic, None)
            return self._refresh_after
        if topic not in self._incomplete_since and not count:
            self._client.find_alternative(topic.kafka_topic, _TOPICS_LISTED_WITHIN)
        waited = time.monotonic() - self._incomplete_since.setdefault(topic, time.monotonic())
        if not count and waited > self._give_up_after:
            self._owner.topic_refused(topic, "", DeliveryError)
        return _ASK_AGAIN_AFTER if waited < _ASK_LATER_AFTER else _ASK_LATER_AFTER
