"""Lists topics, finds the ends of their partitions, and reads compacted topics, without joining a group."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import confluent_kafka as ck

from headway.errors import KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.factory import both
from headway.kafka.binding.time_limits import CREATED_TOPIC_KNOWN_WITHIN, LOG_BOUNDS_TOLD_WITHIN
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.log_bounds import LogBounds
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.runtime.background import in_background
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

log = logging.getLogger(__name__)

_AT_ONCE = 1000
_MOMENT = 0.1  # seconds
_STUCK_AFTER = 1.0
_ASK_AGAIN_AFTER = 0.1
_SETTINGS: Config = {
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,
}


class TopicReader(Closable):
    """Lists topics, finds the ends of their partitions, and reads compacted topics. Not thread-safe.

    The reader keeps its clients for later calls, because creating a client with an `oauth_cb` takes a second. `config`
    has the settings of librdkafka.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._admin: Admin | None
        self._admin, self._consumer = both(partial(Admin, config), partial(unjoined_consumer, {**config, **_SETTINGS}))

    @property
    def admin(self) -> Admin:
        """The admin client, which is created when it is first used."""
        if self._admin is None:
            self._admin = Admin(self._config)
        return self._admin

    def bounds(self, within: float = LOG_BOUNDS_TOLD_WITHIN, isolation: str = "read_uncommitted") -> LogBounds:
        """Return an object that finds the ends of partitions within `within` seconds.

        Raises `KafkaError` as `Admin` does.
        """
        return LogBounds(self._config, isolation, within, self.admin.client)

    def renew(self) -> None:
        """Replace the clients with new ones.

        An old client may keep sending requests to a broker that no longer leads the partition, and reads nothing from a
        topic that was deleted and created again.
        """
        self._admin = None
        before, self._consumer = self._consumer, unjoined_consumer({**self._config, **_SETTINGS})
        in_background(before.close)

    def serve(self) -> None:
        """Poll the clients, because otherwise their error and log reports would pile up."""
        self._consumer.poll(0)
        if self._admin:
            self._admin.serve()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def compacted(
        self,
        topic: str,
        partitions: Collection[int],
        within: float,
        when_stuck: Callable[[dict[int, dict[str, bytes]]], None] = lambda values: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> dict[int, dict[str, bytes]]:
        """Return the latest value of each key, for each partition. Deleted keys are left out.

        Records whose key is not text are skipped with a warning.

        This method waits for open transactions, and reads their records if the transactions are committed. If this
        takes more than a second, the method calls `when_stuck` with the values that were read so far. `when_stuck` can
        end the transactions of dead producers.

        Raises:
            AuthorizationError: This client is not permitted to read the topic.
            KafkaError: The end of a partition is not known or was not reached within `within` seconds, or `is_over`
                returned True before that.
        """
        values: dict[int, dict[str, bytes]] = {partition: {} for partition in partitions}
        ends = self._ends(topic, partitions, within)
        # The partitions that have not been read to their end yet.
        missing = {partition for partition, end in ends.items() if end > 0}
        try:
            self._consumer.assign([ck.TopicPartition(topic, partition, ck.OFFSET_BEGINNING) for partition in missing])
            began = time.monotonic()
            deadline, stuck_at = began + within, began + _STUCK_AFTER
            while missing:
                for message in self._consumer.take(_AT_ONCE, _MOMENT):
                    if (error := message.error()) and (refused := why_not_readable(error, topic, self._config)):
                        raise refused
                    if _reaches(message, ends, values):
                        missing.discard(message.partition())
                if missing and time.monotonic() > stuck_at:
                    stuck_at = deadline
                    when_stuck(values)
                if missing and is_over():
                    raise KafkaError(f"{topic} was not read to its end, because its reader is closing.")
                if time.monotonic() > deadline:
                    raise KafkaError(
                        f"{topic} could not be read to its end within {within:g} s: partitions {sorted(missing)} hold "
                        "an open transaction, or their broker does not answer. `kafka-transactions.sh find-hanging` "
                        "shows a transaction that its coordinator no longer tracks, and `abort` ends it."
                    )
        finally:
            self._consumer.assign([])
        return values

    def _ends(self, topic: str, partitions: Collection[int], within: float) -> dict[int, int]:
        """Return the end offsets of the partitions, including open transactions."""
        bounds, wanted = self.bounds(within), [(topic, partition) for partition in partitions]
        deadline = time.monotonic() + CREATED_TOPIC_KNOWN_WITHIN  # a new topic is not known to all brokers at once
        while len(found := bounds.ends(wanted)) < len(wanted):
            if time.monotonic() > deadline:
                missing = sorted(set(partitions).difference(partition for _, partition in found))
                raise KafkaError(f"The topic {topic} does not have the partitions {missing}. Create the topic again.")
            time.sleep(_ASK_AGAIN_AFTER)
        return {partition: end for (_, partition), end in found.items()}


def _reaches(message: Any, ends: Mapping[int, int], values: dict[int, dict[str, bytes]]) -> bool:
    """Process a record or the end of a partition. Returns whether that partition has been read to its end."""
    partition, error = message.partition(), message.error()
    if error is None:
        key, value = _text(message.key()), message.value()
        if key is None:
            log.warning("A record in %s is skipped: its key %.50r is not UTF-8.", message.topic(), message.key())
        elif value is None:
            values[partition].pop(key, None)
        else:
            values[partition][key] = value
        return bool(message.offset() + 1 >= ends[partition])
    # This event arrives only when all transactions before this offset have ended.
    if error.code() == ck.KafkaError._PARTITION_EOF:
        return bool(message.offset() >= ends[partition])
    return False


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
