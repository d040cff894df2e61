"""Markers: which batches of a writer's tasks are in Kafka, in a topic that keeps the last of each task.

A marker is written in the same transaction as the records it stands for, so both are there or neither. Who has fenced
off the earlier attempts at a task, and then looks for its marker, knows what became of them.

A topic and not a group's offsets, which could be written in a transaction too and be looked up at once: Kafka forgets
those a week after the last commit, and a batch may be tried again after a longer stop.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from zlib import crc32

import confluent_kafka as ck

from headway.errors import KafkaError
from headway.kafka.admin import Admin, describe
from headway.kafka.closing import Closable
from headway.kafka.making import make_client
from headway.kafka.patience import patiently

T = TypeVar("T")

_PARTITIONS = 16
# Only segments that are full, or old, are compacted or deleted; this is what a look-up may have to read through.
_SEGMENTS = {"segment.ms": "600000"}
_COMPACTION = {**_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_A_DAY = {**_SEGMENTS, "cleanup.policy": "delete", "retention.ms": "86400000"}

_ANSWER_WITHIN = 60.0
_KNOWN_WITHIN = 10.0
_DECIDED_WITHIN = 90.0
_FIRST_SPAN = 256  # offsets: most look-ups find what was written a moment ago
_SPAN_GROWS = 16
_AT_A_TIME = 5_000


def create_marker_topic(admin: Admin, topic: str, *, lasting: bool = True) -> None:
    """Create the topic, if it is not there. Raises `KafkaError`.

    It keeps the last marker of each key; if not `lasting`, all markers for a day. That is for keys that are used once,
    of which a compacted topic would keep each for ever.
    """
    if topic in admin.topics():
        return
    config = _COMPACTION if lasting else _A_DAY
    try:
        admin.create([topic], _PARTITIONS, config=config)
    except KafkaError as error:
        if topic not in admin.topics():  # nor has anybody else created it in this moment
            raise KafkaError(
                f"The topic {topic}, where exactly-once delivery marks what is written, does not exist and was not "
                f"created: {error} Create it with cleanup.policy={config['cleanup.policy']}, or choose "
                "delivery=at_least_once."
            ) from error


class Markers(Closable):
    """Looks markers up by key. `config` is librdkafka's."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        own = {
            "group.id": "headway-markers",  # never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
        }
        self._topic = topic
        self._consumer = make_client(ck.Consumer, {"log_level": 2, **config, **own})
        self._partitions = 0

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def partition_of(self, key: bytes) -> int:
        """The partition that holds the markers with this key."""
        if not self._partitions:
            self._partitions = self._count_partitions()
        return crc32(key) % self._partitions

    def last(self, key: bytes) -> bytes | None:
        """The newest committed marker with this key, searched from the end; waits for transactions that are open."""
        partition = self.partition_of(key)
        begin, stop = self._extent(partition)
        start, span = max(begin, stop - _FIRST_SPAN), _FIRST_SPAN
        found = self._scan(key, partition, start, None)
        while found is None and start > begin:
            stop, span = start, span * _SPAN_GROWS
            start = max(begin, stop - span)
            found = self._scan(key, partition, start, stop)
        return found

    def _scan(self, key: bytes, partition: int, start: int, stop: int | None) -> bytes | None:
        """The last marker from one offset to before another; or to the end, as it was when that was reached."""
        self._consumer.assign([ck.TopicPartition(self._topic, partition, start)])
        deadline = time.monotonic() + _DECIDED_WITHIN
        found, position = None, start
        while stop is None or position < stop:
            for message in self._consumer.consume(_AT_A_TIME, 0.1):
                position = _position_after(message)
                if message.error():
                    stop = stop or self._high_watermark(partition)
                elif message.key() == key and (stop is None or position <= stop):
                    found = message.value()
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"Partition {partition} of {self._topic} could not be read up to its end within "
                    f"{_DECIDED_WITHIN:g} s: a transaction in it is open. It ends by its transaction.timeout.ms."
                )
        return found

    def _extent(self, partition: int) -> tuple[int, int]:
        """The first offset, and that behind the last which is decided."""
        at = ck.TopicPartition(self._topic, partition)
        return self._ask(partial(self._consumer.get_watermark_offsets, at))

    def _high_watermark(self, partition: int) -> int:
        # Of the last fetch: unlike the answer to a request for it, it counts what is not decided yet.
        at = ck.TopicPartition(self._topic, partition)
        return self._consumer.get_watermark_offsets(at, cached=True)[1]

    def _count_partitions(self) -> int:
        """How many the topic has; waits until the broker has heard of it, if it is new."""
        deadline = time.monotonic() + _KNOWN_WITHIN
        while time.monotonic() < deadline:
            about = self._ask(lambda seconds: self._consumer.list_topics(self._topic, timeout=seconds))
            if about.topics[self._topic].error is None:
                return len(about.topics[self._topic].partitions)
            time.sleep(0.02)
        raise KafkaError(f"Kafka has no topic {self._topic}, where exactly-once delivery marks what is written.")

    def _ask(self, call: Callable[[float], T]) -> T:
        try:
            return patiently(call, _ANSWER_WITHIN)
        except ck.KafkaException as error:
            raise KafkaError(f"The markers in {self._topic} cannot be read: {describe(error.args[0])}.") from error


def _position_after(message: Any) -> int:
    if (error := message.error()) is None:
        return message.offset() + 1  # type: ignore[no-any-return]
    if error.code() != ck.KafkaError._PARTITION_EOF:
        raise KafkaError(f"Markers cannot be read: {error.str()}.")
    return message.offset()  # type: ignore[no-any-return]
