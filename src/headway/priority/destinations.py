"""The destinations of a producer's records: each topic and level that it has sent to, with its counts."""

import threading
from collections.abc import Iterator
from operator import index

from headway.core.levels.naming import level_topic
from headway.core.producer.queues import TopicQueues
from headway.errors import BufferFullError, ConfigError
from headway.kafka.producer.delivery import Destination
from headway.kafka.producer.delivery_times import DeliveryTimes
from headway.kafka.producer.sendable import Sendable
from headway.kafka.producer.sender import Sender
from headway.settings.config import no_such_level


class Destinations:
    """The destinations of one producer. A destination is created when the first record is sent to it.

    `open` maps a level and a topic to their destination, and is empty once the producer is closed. The level None
    stands for level 0, which is the only level of a producer without levels. Thread-safe.
    """

    def __init__(self, sender: Sender, levels: int | None) -> None:
        self._sender = sender
        self.has_levels = levels is not None
        self.levels = range(levels or 1)
        self.refused = 0
        """The number of records for which the buffer had no space."""
        self._counting = threading.Lock()
        self._is_measured = False
        self._by_level: dict[int | None, dict[str, Destination]] = {level: {} for level in self.levels}
        self._delay_topics: dict[str, Destination] = {}
        self.open: dict[int | None, dict[str, Destination]] = {None: self._by_level[0]}
        if self.has_levels:
            self.open |= self._by_level

    def close(self) -> None:
        """Refuse new records from now on."""
        self.open = {}

    def kafka_topic(self, topic: str, level: int) -> str:
        """Return the name of the Kafka topic that holds a topic's records of a level."""
        if not self.has_levels:
            return topic
        if topic == "":
            raise ConfigError("The topic is ''; its name must be a string of at least one character.")
        return level_topic(topic, level)

    def find(self, topic: str, level: int | None) -> Destination:
        """Return the destination for a topic and a level. The level must exist."""
        at = 0 if level is None else index(level)
        known = self._by_level[at].get(topic)
        if known is None:
            new = self._new(topic, at, self.kafka_topic(topic, at), self._sender.serialises)
            known = self._by_level[at].setdefault(topic, new)
        return known

    def delay_topic(self, topic: str) -> Destination:
        """Return the destination for one of a scheduler's topics, whose records are already serialised."""
        known = self._delay_topics.get(topic)
        if known is None:
            known = self._delay_topics.setdefault(topic, self._new(topic, 0, topic, is_raw=False))
        return known

    def _new(self, topic: str, level: int, kafka_topic: str, is_raw: bool) -> Destination:
        queues = self._sender.topic(kafka_topic, level)
        new = Destination(topic, level, kafka_topic, self._sender.client, queues, is_raw=is_raw)
        if self._is_measured:
            new.times = DeliveryTimes(new)
        return new

    def measure(self) -> None:
        """Measure the delivery times of all destinations from now on."""
        self._is_measured = True
        for each in self._all():
            each.times = each.times or DeliveryTimes(each)

    def check_level(self, level: int | None, topic: str) -> None:
        """Raise `ConfigError` if a record cannot be sent at this level."""
        if level is not None and not self.has_levels:
            raise ConfigError(
                f"A record for {topic} has level={level}, but this producer has no levels. Leave out the level, or "
                "give the producer the setting levels. Nothing was sent."
            )
        self._check(level)

    def _check(self, level: int | None) -> None:
        try:
            exists = level is None or index(level) in self.levels
        except TypeError:
            exists = False
        if not exists:
            raise no_such_level(level, len(self.levels))  # type: ignore[arg-type]  # level is not None here

    def those(self, topic: str | None = None, level: int | None = None) -> list[Destination]:
        """Return the destinations of a topic, of a level, or of the whole producer.

        Raises `ConfigError` if the level does not exist.
        """
        self._check(level)
        return [each for each in self._all() if (level is None or level == each.level) and topic in (None, each.topic)]

    def _all(self) -> Iterator[Destination]:
        for destinations in (*self._by_level.values(), self._delay_topics):
            yield from list(destinations.values())

    def queues(self, topic: str | None = None, level: int | None = None) -> list[TopicQueues[Sendable]]:
        """Return the queues of the destinations that `those` returns."""
        return [each.queues for each in self.those(topic, level)]

    def queued(self) -> int:
        """Count the records that have no delivery report yet."""
        return sum(each.counts().under_way for each in self._all())

    def failed(self) -> int:
        """Count the records that could not be delivered."""
        return sum(each.counts().failed for each in self._all())

    def buffer_full(self, destination: Destination, within: str = "") -> BufferFullError:
        """Count a record for which the buffer has no space, and return its error."""
        with self._counting:
            self.refused += 1
        return BufferFullError(
            f"The send buffer had no space for a record for {destination.topic}{within}: {self.queued()} records have "
            "no delivery report yet. Send more slowly, or raise buffer.memory or queue.buffering.max.messages."
        )
