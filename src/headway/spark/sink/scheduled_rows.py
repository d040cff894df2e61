"""Routes rows with a due time to a scheduler's delay topics, from which a relay delivers them when they are due."""

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

from headway.core.delay.schedule import HEADER, Schedule, partition_of
from headway.core.untrusted import LATEST
from headway.delay import limits
from headway.delay.delay_topic_choice import LAYOUT_HOLDS_FOR
from headway.delay.topic_names import TopicNames
from headway.delay.topics import Layout, add_delay_topics, read_layout
from headway.errors import ConfigError, DeliveryError, KafkaError
from headway.kafka.producer.columnar import Columns
from headway.runtime.gc_pause import GcPause
from headway.settings.config import whole_number
from headway.settings.connection_settings import connection_of

# A relay waits one minute for records that are still being written to a delay topic. A transaction must have ended by
# then, and brokers check only every ten seconds which transactions have timed out.
_MOST_TRANSACTION_MS = 45_000
_TRANSACTION = "transaction.timeout.ms"

_OF_TRANSACTIONS: Mapping[str, Any] = {
    # message.timeout.ms is left out, because a record times out with its transaction, and librdkafka rejects a longer
    # timeout.
    **{name: value for name, value in limits.DEFAULTS.items() if name != "message.timeout.ms"},
    _TRANSACTION: _MOST_TRANSACTION_MS,
}


def delay_topic_settings(*, in_transaction: bool) -> Mapping[str, Any]:
    """Return the default settings of a producer that writes to delay topics."""
    return _OF_TRANSACTIONS if in_transaction else limits.DEFAULTS


class SchedulerDelayTopics(NamedTuple):
    """The delay topics of a scheduler, as the driver passes them to tasks.

    `seen_at` is when the driver read the layout from Kafka, in seconds since the epoch.
    """

    name: str
    layout: Layout
    seen_at: float


def find_delay_topics(config: Mapping[str, Any], name: str) -> SchedulerDelayTopics:
    """Create the missing delay topics of a scheduler, and return all of them.

    Tasks cannot create topics, and a row can have any delay, so all of the topics must exist before the tasks start.

    Raises `ConfigError` if a timeout or the record size in `config` is too large for delay topics, and `KafkaError` if
    Kafka cannot be reached or rejects a request.
    """
    limits.check(config)
    if (timeout := whole_number(_TRANSACTION, config.get(_TRANSACTION, _MOST_TRANSACTION_MS))) > _MOST_TRANSACTION_MS:
        raise ConfigError(
            f"The option `kafka.{_TRANSACTION}` is {timeout}; with a `due` column it must be at most "
            f"{_MOST_TRANSACTION_MS}, because relays do not wait longer for records that are still being written. "
            "Lower it. If a task needs more time than that, divide the rows into more tasks."
        )
    return SchedulerDelayTopics(name, add_delay_topics(connection_of(config), name), time.time())


class DueRows:
    """Routes the rows of one task that have a due time to delay topics.

    While a write runs, which can take hours, delay topics are created and deleted, depending on the delays in use. So,
    like a `Scheduler`, this class reads the layout again from time to time, before a topic that it uses can be deleted.

    Args:
        delay_topics: The delay topics that existed when the write or micro-batch started.
        config: The settings with which to connect to Kafka.
    """

    def __init__(self, delay_topics: SchedulerDelayTopics, config: Mapping[str, Any]) -> None:
        self._names = TopicNames(delay_topics.name)
        self._config = config
        self._orders = itertools.count()
        self._token = uuid.uuid4().hex[:10]
        self._use(delay_topics.layout, delay_topics.seen_at)

    def _use(self, layout: Layout, seen_at: float) -> None:
        self._partitions, ladder = layout.partitions, layout.usable
        self._delay_topic_for = ladder.delay_for
        self._topics = {delay_topic: self._names.delay_topic(delay_topic) for delay_topic in (0, *ladder.delays)}
        self._seen_at = seen_at

    def _look_again(self) -> None:
        seen_at = time.time()
        if (layout := read_layout(connection_of(self._config), self._names.name, "Write")) is None:
            raise KafkaError(
                f"The scheduler {self._names.name} no longer has topics: they were deleted while rows were being "
                "written. Start the write again, which creates the topics."
            )
        self._use(layout, seen_at)

    def routed(self, columns: Columns, due: Sequence[int | None]) -> Columns:
        """Route the records that have a due time to delay topics. `due` is in microseconds since the epoch.

        Raises `DeliveryError` if a record with a due time has a header whose name Headway reserves for the schedule, or
        if its target is one of the scheduler's own topics. Raises `KafkaError` if the layout of the delay topics must
        be read again but cannot be read.
        """
        if time.time() >= self._seen_at + LAYOUT_HOLDS_FOR:
            self._look_again()
        now, keys = int(time.time() * 1000), list(islice(columns.keys, columns.rows))
        topics: list[str] = []
        partitions: list[int] = []
        headers: list[Sequence[Any] | None] = []
        given = zip(due, keys, columns.topics, columns.partitions, columns.headers or repeat(None), strict=False)
        with GcPause():
            for at, key, topic, partition, own in given:
                if at is None:
                    delay_topic, number, fields = topic, partition, own
                else:
                    delay_topic, number, fields = self._to_delay_topic(at, now, key, topic, partition, own)
                    if own and any(name == HEADER for name, _ in own):
                        raise DeliveryError(
                            f"{columns.name_of(len(topics))} is due later but has a header {HEADER}, a name that "
                            "Headway uses itself. Give your header another name."
                        )
                topics.append(delay_topic)
                partitions.append(number)
                headers.append(fields)
        return columns._replace(keys=keys, topics=topics, partitions=partitions, headers=headers)

    def _to_delay_topic(
        self, at: int, now: int, key: Any, topic: str, partition: int, own: Sequence[Any] | None
    ) -> tuple[str, int, list[Any]]:
        if self._names.owns(topic):
            raise DeliveryError(
                f"A row that is due later is for {topic}, which is one of the scheduler's own topics. Choose another."
            )
        due, order = min(max(0, -(-at // 1000)), LATEST), next(self._orders)
        target = partition if partition >= 0 else None
        schedule = Schedule(f"{self._token}{order:x}", due, now, order, topic, target)
        delay_topic = self._topics[self._delay_topic_for(due - now)]
        fields = [*(own or ()), schedule.header()]
        return delay_topic, partition_of(key, order, self._partitions), fields
