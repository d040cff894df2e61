"""Markers of the batches that a writer's tasks have stored in Kafka. A topic keeps the last marker of each task.

A marker is written in the same transaction as its records, so Kafka stores either the marker and the records, or
nothing. A writer first fences off earlier attempts at a task, and then reads the marker to find out whether one of them
has committed.

A key is `writer/task`. All markers of a writer are in one partition, so one look-up also shows the progress of its
other tasks.

The committed offsets of a group can also be written in a transaction, and would be faster to look up. But Kafka deletes
committed offsets a week after the last commit, and a batch may be repeated after a longer stop.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

import confluent_kafka as ck

from headway.errors import KafkaError, UnreadableError
from headway.kafka.admin import Admin, describe
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import (
    BROKER_RESTARTS_WITHIN,
    CREATED_TOPIC_KNOWN_WITHIN,
    OPEN_TRANSACTION_ENDS_WITHIN,
)
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.log_bounds import fetched_end, watermarks
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

log = logging.getLogger(__name__)

# This number determines the partition of a marker, so it must never change. The topic's actual number of partitions
# does not matter, because an operator may add partitions.
_PARTITIONS = 16
# Kafka compacts and deletes only segments that are full or old, and a look-up may have to read the records in all other
# segments. So a segment is closed after ten minutes.
_SEGMENTS = {"segment.ms": "600000"}
_COMPACTION = {**_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_A_DAY = {**_SEGMENTS, "cleanup.policy": "delete", "retention.ms": "86400000"}

# A missing topic counts as deleted after this many seconds, by which time all brokers know a new topic.
_GONE_AFTER = 1.0
# A look-up first searches this many offsets at the end of the log, because most of the markers that are looked up are
# recent.
_FIRST_SPAN = 256
_SPAN_GROWS = 16
_AT_A_TIME = 5_000


def create_marker_topic(admin: Admin, topic: str, *, lasting: bool = True) -> None:
    """Create the topic of the markers, if it does not exist.

    With `lasting`, the topic keeps the last marker of each key. Otherwise the topic keeps all markers for a day,
    because a compacted topic would forever keep keys that are used only once.

    Raises `KafkaError` if the topic cannot be created, or has too few partitions.
    """
    config = _COMPACTION if lasting else _A_DAY
    try:
        count = admin.ensure_topic(topic, _PARTITIONS, config)
    except KafkaError as error:
        raise KafkaError(
            f"The topic {topic}, where exactly-once delivery keeps its markers, does not exist and could not be "
            f"created: {error} Create it with {_PARTITIONS} partitions and cleanup.policy={config['cleanup.policy']}, "
            "or choose delivery=at_least_once."
        ) from error
    _check_partitions(topic, count)


def _check_partitions(topic: str, count: int) -> None:
    if count < _PARTITIONS:
        raise KafkaError(
            f"The topic {topic}, where exactly-once delivery keeps its markers, has {count} partitions and needs "
            f"{_PARTITIONS}. Add partitions: `kafka-topics.sh --alter --topic {topic} --partitions {_PARTITIONS}`."
        )


def marker_partition(key: bytes) -> int:
    """Return the partition that holds the markers of this key's writer."""
    return crc32(_writer(key)) % _PARTITIONS


class CommitMarkers(Closable):
    """Looks up markers by their key.

    If the topic was deleted after the writer began, `create_marker_topic` creates it again. If `read` raises
    `UnreadableError` for a marker, the marker is skipped with a warning, and the previous marker of the key counts.

    Args:
        config: The settings of librdkafka.
        topic: The topic of the markers.
        read: A function that reads the value of a marker.
        lasting: True if the topic keeps the last marker of each key, False if it keeps all markers for a day.
        patience: How many seconds to wait for a leader to report where its log begins and ends.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        read: Callable[[bytes], object] = lambda value: None,
        *,
        lasting: bool = True,
        patience: float = BROKER_RESTARTS_WITHIN,
    ) -> None:
        own = {
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
        }
        self._config = config
        self._topic = topic
        self._read = read
        self._lasting = lasting
        self._patience = patience
        self._consumer = unjoined_consumer({"log_level": 2, **config, **own})
        self._is_known = False
        self._position = 0
        self._seen_to = 0
        self._found: dict[bytes, bytes | None] = {}

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def partition_of(self, key: bytes) -> int:
        """Return the partition that holds the markers of this key's writer. Raises `KafkaError`."""
        if not self._is_known:
            self._await_topic()
            self._is_known = True
        return marker_partition(key)

    def newest(self, key: bytes) -> dict[bytes, bytes]:
        """Return the newest committed markers of this key's writer, including the markers of its other keys.

        Markers of other keys that are older than the marker of this key are left out. Waits for open transactions to
        end. Raises `KafkaError`.
        """
        partition, writer = self.partition_of(key), _writer(key)
        begin, stop = self._extent(partition)
        start, span = max(begin, stop - _FIRST_SPAN), _FIRST_SPAN
        found = self._scan(writer, partition, start, None)
        self._seen_to = self._position
        while key not in found and start > begin:
            stop, span = start, span * _SPAN_GROWS
            start = max(begin, stop - span)
            found = {**self._scan(writer, partition, start, stop), **found}
        self._found = found
        return {key: value for key, value in found.items() if value is not None}

    def again(self, key: bytes) -> dict[bytes, bytes]:
        """Return the last result of `newest`, updated with the markers that were committed since then.

        This method does not wait for open transactions. If there are no new markers, the method sends only one request
        to the broker.
        """
        partition = self.partition_of(key)
        _, end = self._extent(partition)
        if end > self._seen_to:
            self._found = {**self._found, **self._scan(_writer(key), partition, self._seen_to, end)}
            self._seen_to = end
        return {key: value for key, value in self._found.items() if value is not None}

    def _scan(self, writer: bytes, partition: int, start: int, stop: int | None) -> dict[bytes, bytes | None]:
        """Return the last marker of each of the writer's keys in the range [start, stop), or None if it was deleted.

        Without `stop`, the range extends to the end of the log.
        """
        self._consumer.assign([ck.TopicPartition(self._topic, partition, start)])
        deadline = time.monotonic() + OPEN_TRANSACTION_ENDS_WITHIN
        found: dict[bytes, bytes | None] = {}
        position, was_at_end = start, False
        while stop is None or position < stop:
            for message in self._consumer.take(_AT_A_TIME, 0.1):
                position = _position_after(message, self._config)
                if message.error():
                    was_at_end = True
                elif (
                    _writer(key := message.key() or b"") == writer
                    and (stop is None or position <= stop)
                    and self._is_marker(message)
                ):
                    found[key] = message.value()
            if was_at_end and stop is None:
                # The end offset that a fetch returns is after the records of open transactions, unlike the answer to a
                # request for offsets.
                stop = fetched_end(self._consumer, (self._topic, partition))
            self._position = position
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"Partition {partition} of {self._topic} could not be read up to its end within "
                    f"{OPEN_TRANSACTION_ENDS_WITHIN:g} s, because a transaction in it is open. The brokers end that "
                    "transaction after its transaction.timeout.ms."
                )
        return found

    def _is_marker(self, message: Any) -> bool:
        """Return whether a record is a marker or deletes one.

        Other records with a marker's key are skipped with a warning.
        """
        if (value := message.value()) is None:
            return True
        try:
            self._read(value)
        except UnreadableError as error:
            where = message.offset(), message.partition(), self._topic
            log.warning("The record at offset %s of partition %s of %s is skipped: %s", *where, error)
            return False
        return True

    def _extent(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset up to which no transaction is open."""
        return watermarks(self._consumer, (self._topic, partition), self._patience, self._config)

    def _await_topic(self) -> None:
        """Wait until the brokers know the topic. If it was deleted, create it again."""
        began, was_created = time.monotonic(), False
        while not (count := self._count_partitions()):
            took = time.monotonic() - began
            if took > _GONE_AFTER and not was_created:
                create_marker_topic(Admin(self._config), self._topic, lasting=self._lasting)
                was_created = True
            if took > CREATED_TOPIC_KNOWN_WITHIN:
                raise KafkaError(
                    f"The brokers still do not know the topic {self._topic} {CREATED_TOPIC_KNOWN_WITHIN:g} s after it "
                    "was created. Exactly-once delivery keeps its markers in this topic. Start again when "
                    "`headway topics list` shows the topic."
                )
            time.sleep(0.02)
        _check_partitions(self._topic, count)

    def _count_partitions(self) -> int:
        def ask(seconds: float) -> "TopicMetadata":
            about: TopicMetadata = self._consumer.list_topics(self._topic, timeout=seconds).topics[self._topic]
            return about

        try:
            about = retrying(ask, self._patience)
        except ck.KafkaException as error:
            if refused := why_not_readable(error.args[0], self._topic, self._config):
                raise refused from error
            raise KafkaError(f"The markers in {self._topic} cannot be read: {describe(error.args[0])}.") from error
        if about.error and (refused := why_not_readable(about.error, self._topic, self._config)):
            raise refused
        return len(about.partitions) if about.error is None else 0


def _writer(key: bytes) -> bytes:
    return key.rpartition(b"/")[0]


def _position_after(message: Any, config: Config) -> int:
    if (error := message.error()) is None:
        return message.offset() + 1  # type: ignore[no-any-return]
    if refused := why_not_readable(error, message.topic(), config):
        raise refused
    if error.code() != ck.KafkaError._PARTITION_EOF:
        raise KafkaError(f"The markers in {message.topic()} cannot be read: {describe(error)}.")
    return message.offset()  # type: ignore[no-any-return]
