"""Chooses the delay topic for a record. Creates delay topics that no earlier delay has needed."""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.core.delay.ladder import FIRST_DELAYS, MEMORY, Ladder
from headway.core.delay.schedule import CHOSEN, Schedule, partition_of
from headway.delay.brokers_time import BrokersTime
from headway.delay.topic_names import TopicNames
from headway.delay.topics import Layout, add_delay_topics, create_topics, read_layout
from headway.errors import HeadwayError, SerializationError

log = logging.getLogger(__name__)

# How often the layout is read again, in seconds. It is read again because other delay topics might have been put in
# use, or all topics might have been recreated.
LAYOUT_LASTS = 30.0
LAYOUT_HOLDS_FOR = 600.0
"""How old the layout can be, in seconds, before it must be checked because delay topics might have been deleted."""


class DelayTopicNames(NamedTuple):
    """The layout of a scheduler's topics, and the name of each delay topic.

    A delay of `reach` milliseconds or more needs a delay topic that does not exist yet.
    """

    partitions: int
    ladder: Ladder
    topics: Mapping[int, str]
    reach: float


class DelayTopicChoice:
    """Chooses the delay topic for each schedule.

    If the scheduler has no topics, the constructor creates the delay topics for short delays, and all other topics.

    Args:
        connection: The settings for the connection to Kafka.
        names: The names of the scheduler's topics.

    Raises `KafkaError` if topics are missing and cannot be created.
    """

    def __init__(self, connection: Mapping[str, Any], names: TopicNames) -> None:
        self._connection = connection
        self._names = names
        self.time = BrokersTime(connection, names)
        """The brokers' time. Delays count from this time."""
        self._delay_topics = self._delay_topics_of(self._read())
        self._adding = threading.Lock()
        self._read_at = time.time()

    @property
    def partitions(self) -> int:
        """The number of partitions that each of the scheduler's topics has."""
        return self._delay_topics.partitions

    def now(self) -> float:
        """Return the brokers' time in seconds since the epoch. If it is in doubt, request it from the brokers first.

        Raises `KafkaError` if the time must be requested and no broker answers.
        """
        if self.time.is_doubtful:
            self.time.ask()
        return self.time.now()

    def place(self, schedule: Schedule, key: Any, now: int, gap: int = 0) -> tuple[str, int]:
        """Return the topic and partition for a schedule that is stored at the time `now` of the brokers' clock.

        If the delay is longer than any earlier one, the missing delay topics are created, as in `reaching`. For a
        recurring schedule, `gap` is the time between two deliveries, and the delay topics for a delay of this length
        are created too. Raises `SerializationError` if the key is neither bytes nor text.
        """
        if not self._read_at <= time.time() < self._read_at + LAYOUT_LASTS:
            self._refresh()
        delay_topics, delay = self._delay_topics, schedule.due - now
        longest = delay if delay > gap else gap
        if longest >= delay_topics.reach:
            delay_topics = self.reaching(longest)
        if schedule.id.startswith(CHOSEN):
            return self._names.commands, partition_of(schedule.id, 0, delay_topics.partitions)
        try:
            partition = partition_of(key, schedule.order, delay_topics.partitions)
        except (TypeError, ValueError) as error:  # the key is neither bytes nor text that can be encoded
            raise SerializationError(
                f"The key of a schedule is neither bytes nor a string ({error}). Convert it, or set key.serializer."
            ) from error
        return delay_topics.topics[delay_topics.ladder.delay_for(delay)], partition

    def covers(self, delay: float) -> bool:
        """Return whether all delay topics for this delay, in milliseconds, exist. If so, `reaching` returns at once."""
        return delay < self._delay_topics.reach

    def may_wait(self, delay: float) -> bool:
        """Return whether `now` or `place` might block because something must first be requested from the brokers."""
        return self._may_be_gone or self.time.is_doubtful or not self.covers(delay)

    @property
    def _may_be_gone(self) -> bool:
        return time.time() >= self._read_at + LAYOUT_HOLDS_FOR

    def reaching(self, delay: int) -> DelayTopicNames:
        """Return the delay topics. If the delay needs missing topics, create them and wait until the brokers list them.

        Raises `AuthorizationError` if this client is not permitted to create them, and `KafkaError` if no broker
        answers.
        """
        with self._adding:
            if not self.covers(delay):  # another thread might just have added the delay topics
                self._delay_topics = self._delay_topics_of(add_delay_topics(self._connection, self._names.name, delay))
                log.info("The delay topics of %s are now: %s.", self._names.name, self._delay_topics.ladder)
            return self._delay_topics

    def _read(self) -> Layout:
        name, connection = self._names.name, self._connection
        layout = read_layout(connection, name, "Write") or create_topics(connection, name, delay=FIRST_DELAYS)
        self.time.ask()
        return layout

    def _refresh(self) -> None:
        """Read the layout again in a thread, so that no caller waits.

        If delay topics might have been deleted, the layout is read before this call returns.
        """
        if self._may_be_gone:
            self._read_again()
            self._read_at = time.time()
        else:
            self._read_at = time.time()
            threading.Thread(target=self._read_again, name="headway-layout", daemon=True).start()

    def _read_again(self) -> None:
        try:
            self._delay_topics = self._delay_topics_of(self._read())
        except HeadwayError as error:
            log.warning("The scheduler %s keeps using its current delay topics: %s", self._names.name, error)

    def _delay_topics_of(self, layout: Layout) -> DelayTopicNames:
        topics = {delay_topic: self._names.delay_topic(delay_topic) for delay_topic in (MEMORY, *layout.usable.delays)}
        return DelayTopicNames(layout.partitions, layout.usable, topics, layout.reach)
