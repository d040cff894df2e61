"""Markers for the batches of a writer's tasks that are in Kafka, in a topic that keeps the last of each task.

A marker is written in the same transaction as the records it stands for, so both are there or neither. A writer that
has fenced off earlier attempts at a task finds their outcome by its marker.

A key is `writer/task`. All markers of a writer are in one partition, so a look-up sees how far its other tasks are.

A group's offsets could be written in a transaction too, and be looked up at once. But Kafka forgets them a week after
the last commit, and a batch may be tried again after a longer stop.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
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
from headway.kafka.missing_rights import why_not_readable
from headway.kafka.reading.log_bounds import fetched_end
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

T = TypeVar("T")

log = logging.getLogger(__name__)

# Decides the partition of a marker, so it never changes. The topic's own count does not matter: an operator may add
# partitions.
_PARTITIONS = 16
# Only segments that are full, or old, are compacted or deleted; a look-up may have to read through the rest.
_SEGMENTS = {"segment.ms": "600000"}
_COMPACTION = {**_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_A_DAY = {**_SEGMENTS, "cleanup.policy": "delete", "retention.ms": "86400000"}

_GONE_AFTER = 1.0  # seconds in which all brokers have heard of a topic that the driver has just made
_FIRST_SPAN = 256  # offsets: most look-ups find a marker of a moment ago
_SPAN_GROWS = 16
_AT_A_TIME = 5_000


def create_marker_topic(admin: Admin, topic: str, *, lasting: bool = True) -> None:
    """Create the topic, if it does not exist. Raises `KafkaError`, also for one with too few partitions.

    It keeps the last marker of each key; if not `lasting`, all markers for a day. The latter is for keys that are used
    once, each of which a compacted topic would keep for ever.
    """
    count = admin.topics().get(topic)
    if count is None:
        count = _create(admin, topic, _COMPACTION if lasting else _A_DAY)
    _check_partitions(topic, count)


def _create(admin: Admin, topic: str, config: Mapping[str, str]) -> int:
    """Create the topic and return its number of partitions; another process may have created it this very moment."""
    try:
        admin.create([topic], _PARTITIONS, config=config)
    except KafkaError as error:
        if (count := admin.topics().get(topic)) is None:
            raise KafkaError(
                f"The topic {topic}, where exactly-once delivery marks what is written, does not exist and was not "
                f"created: {error} Create it with {_PARTITIONS} partitions and "
                f"cleanup.policy={config['cleanup.policy']}, or choose delivery=at_least_once."
            ) from error
        return count
    return _PARTITIONS


def _check_partitions(topic: str, count: int) -> None:
    if count < _PARTITIONS:
        raise KafkaError(
            f"The topic {topic}, where exactly-once delivery marks what is written, has {count} partitions and needs "
            f"{_PARTITIONS}. Add some: `kafka-topics.sh --alter --topic {topic} --partitions {_PARTITIONS}`."
        )


def partition_of(key: bytes) -> int:
    """Return the partition that holds the markers of this key's writer."""
    return crc32(_writer(key)) % _PARTITIONS


class CommitMarkers(Closable):
    """A reader of markers by key. `config` is librdkafka's.

    A topic that is gone, though it was there when the writer began, is created anew as by `create_marker_topic`. A
    leader has `patience` seconds to say where its log begins and ends. A marker for which `read` raises
    `UnreadableError` is passed over, with a warning: the one before it counts.
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
        return partition_of(key)

    def last(self, key: bytes) -> bytes | None:
        """Return the newest committed marker with this key; waits for open transactions."""
        return self.newest(key).get(key)

    def newest(self, key: bytes) -> dict[bytes, bytes]:
        """Return the newest committed markers of the key's writer, also for other keys, searched from the end.

        Markers of other keys that are older than this key's are left out. Waits for open transactions. Raises
        `KafkaError`.
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
        """Return what `newest` returned for this key, with the markers that were committed since.

        Does not wait for open transactions, and asks the broker once if there is nothing new.
        """
        partition = self.partition_of(key)
        _, end = self._extent(partition)
        if end > self._seen_to:
            self._found = {**self._found, **self._scan(_writer(key), partition, self._seen_to, end)}
            self._seen_to = end
        return {key: value for key, value in self._found.items() if value is not None}

    def _scan(self, writer: bytes, partition: int, start: int, stop: int | None) -> dict[bytes, bytes | None]:
        """Return a writer's last markers in [start, stop), None for a deleted one; no `stop` means the log end."""
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
                stop = self._high_watermark(partition)
            self._position = position
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"Partition {partition} of {self._topic} could not be read up to its end within "
                    f"{OPEN_TRANSACTION_ENDS_WITHIN:g} s: a transaction in it is open. It ends by its "
                    "transaction.timeout.ms."
                )
        return found

    def _is_marker(self, message: Any) -> bool:
        """Return whether a record is a marker, or deletes one, and not another record under a marker's key."""
        if (value := message.value()) is None:
            return True
        try:
            self._read(value)
        except UnreadableError as error:
            where = message.offset(), message.partition(), self._topic
            log.warning("The record at offset %s of partition %s of %s is passed over: %s", *where, error)
            return False
        return True

    def _extent(self, partition: int) -> tuple[int, int]:
        """Return the first offset, and the one behind the last decided one."""
        at = ck.TopicPartition(self._topic, partition)

        def ask(seconds: float) -> tuple[int, int]:
            begin, end = self._consumer.get_watermark_offsets(at, seconds)
            if begin < 0 or end < 0:  # unknown is not empty: records that are there would be written twice
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError.OFFSET_NOT_AVAILABLE))
            return begin, end

        return self._ask(ask)

    def _high_watermark(self, partition: int) -> int | None:
        """Return the end of the log as the last fetch had it, or None if that is not known."""
        # Unlike the answer to a request for it, this end counts undecided records.
        return fetched_end(self._consumer, (self._topic, partition))

    def _await_topic(self) -> None:
        """Wait until the broker has heard of the topic, and create it if it is gone."""
        began, was_created = time.monotonic(), False
        while not (count := self._count_partitions()):
            took = time.monotonic() - began
            if took > _GONE_AFTER and not was_created:
                create_marker_topic(Admin(self._config), self._topic, lasting=self._lasting)
                was_created = True
            if took > CREATED_TOPIC_KNOWN_WITHIN:
                raise KafkaError(
                    f"Kafka has no topic {self._topic}, where exactly-once delivery marks what is written."
                )
            time.sleep(0.02)
        _check_partitions(self._topic, count)

    def _count_partitions(self) -> int:
        about = self._ask(lambda seconds: self._consumer.list_topics(self._topic, timeout=seconds)).topics[self._topic]
        if about.error and (refused := why_not_readable(about.error, self._topic, self._config)):
            raise refused
        return len(about.partitions) if about.error is None else 0

    def _ask(self, call: Callable[[float], T]) -> T:
        try:
            return retrying(call, self._patience)
        except ck.KafkaException as error:
            if refused := why_not_readable(error.args[0], self._topic, self._config):
                raise refused from error
            raise KafkaError(f"The markers in {self._topic} cannot be read: {describe(error.args[0])}.") from error


def _writer(key: bytes) -> bytes:
    return key.rpartition(b"/")[0]


def _position_after(message: Any, config: Config) -> int:
    if (error := message.error()) is None:
        return message.offset() + 1  # type: ignore[no-any-return]
    if refused := why_not_readable(error, message.topic(), config):
        raise refused
    if error.code() != ck.KafkaError._PARTITION_EOF:
        raise KafkaError(f"Markers cannot be read: {error.str()}.")
    return message.offset()  # type: ignore[no-any-return]
