"""Topics seen without a group: which exist, where they end, and all records of a compacted one."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import confluent_kafka as ck

from headway.errors import KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding.factory import together
from headway.kafka.binding.time_limits import CREATED_TOPIC_KNOWN_WITHIN, LOG_BOUNDS_TOLD_WITHIN
from headway.kafka.missing_rights import why_not_readable
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
    """A reader that sees which topics exist and where they end, and reads compacted ones; it joins no group.

    Its clients are kept for the next question, as each costs a second with an `oauth_cb`. `config` is librdkafka's. Not
    thread-safe.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._admin: Admin | None
        made: list[Any] = together(partial(Admin, config), partial(unjoined_consumer, {**config, **_SETTINGS}))
        self._admin, self._consumer = made

    @property
    def admin(self) -> Admin:
        """The admin client, which knows the topics."""
        if self._admin is None:
            self._admin = Admin(self._config)
        return self._admin

    def bounds(self, within: float = LOG_BOUNDS_TOLD_WITHIN, isolation: str = "read_uncommitted") -> LogBounds:
        """Return a `LogBounds` that asks for at most so many seconds. Raises `KafkaError` as `Admin` does."""
        return LogBounds(self._config, isolation, within, self.admin.client)

    def renew(self) -> None:
        """Ask and read with new clients from now on.

        The old ones may keep asking a broker that is no longer the right one, and read nothing of a topic that was
        deleted and created again.
        """
        self._admin = None
        before, self._consumer = self._consumer, unjoined_consumer({**self._config, **_SETTINGS})
        in_background(before.close)

    def serve(self) -> None:
        """Let go of the clients' reports of the meantime."""
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
        """Return the latest value of each key of each partition; keys whose latest value is none are left out.

        Records whose key is no text are passed over, with a warning.

        Open transactions are waited for: their records are read if they are committed. After a second of waiting
        `when_stuck` is called with the values read before them, to end transactions that nobody will end. Reading ends
        once `is_over` returns True.

        Raises:
            AuthorizationError: This client may not read the topic.
            KafkaError: The end of a partition is not known, or was not reached, within so many seconds; or `is_over`
                came before.
        """
        values: dict[int, dict[str, bytes]] = {partition: {} for partition in partitions}
        ends = self._ends(topic, partitions, within)
        # The partitions that are not read to their ends yet.
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
                    raise KafkaError(f"{topic} was not read to its end, since nobody wants it any more.")
                if time.monotonic() > deadline:
                    raise KafkaError(
                        f"{topic} could not be read to its end within {within:g} s: partitions {sorted(missing)} hold "
                        "an open transaction, or their broker does not answer. `kafka-transactions.sh find-hanging` "
                        "shows a transaction that its coordinator has forgotten, and `abort` ends it."
                    )
        finally:
            self._consumer.assign([])
        return values

    def _ends(self, topic: str, partitions: Collection[int], within: float) -> dict[int, int]:
        """Return the ends of the logs, open transactions included."""
        bounds, wanted = self.bounds(within), [(topic, partition) for partition in partitions]
        deadline = time.monotonic() + CREATED_TOPIC_KNOWN_WITHIN  # brokers hear of a new topic one after the other
        while len(found := bounds.ends(wanted)) < len(wanted):
            if time.monotonic() > deadline:
                missing = sorted(set(partitions).difference(partition for _, partition in found))
                raise KafkaError(
                    f"The topic {topic} has no partitions {missing}, which are to be read. Create it anew."
                )
            time.sleep(_ASK_AGAIN_AFTER)
        return {partition: end for (_, partition), end in found.items()}


def read_compacted(
    config: Config,
    topic: str,
    partitions: Collection[int],
    within: float,
    when_stuck: Callable[[dict[int, dict[str, bytes]]], None] = lambda values: None,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[int, dict[str, bytes]]:
    """Read once as `TopicReader.compacted` does, with clients that are closed afterwards."""
    with TopicReader(config) as reader:
        return reader.compacted(topic, partitions, within, when_stuck, is_over)


def _reaches(message: Any, ends: Mapping[int, int], values: dict[int, dict[str, bytes]]) -> bool:
    """Take in a record, or the event of an end; return whether that partition is read to its end."""
    partition, error = message.partition(), message.error()
    if error is None:
        key, value = _text(message.key()), message.value()
        if key is None:
            log.warning("A record in %s is passed over: its key %.50r is not UTF-8.", message.topic(), message.key())
        elif value is None:
            values[partition].pop(key, None)
        else:
            values[partition][key] = value
        return bool(message.offset() + 1 >= ends[partition])
    if error.code() == ck.KafkaError._PARTITION_EOF:  # the event only comes at the end of decided transactions
        return bool(message.offset() >= ends[partition])
    return False


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None
