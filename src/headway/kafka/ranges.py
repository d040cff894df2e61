"""Reading by offset: which partitions the level topics have, what they hold, and the records of a range.

Progress is the caller's: no group is joined and nothing is committed. A range ends where the position has reached its
end, not after a count of records: compaction and transaction markers leave offsets at which there is nothing.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import methodcaller
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import confluent_kafka
from confluent_kafka import Message

from headway.core.topics import level_topic
from headway.errors import ConfigError, KafkaError
from headway.records import TopicPartition

__all__ = ["DEFAULTS", "OURS", "Message", "Offsets", "Range", "RangeReader"]

Offsets = dict[TopicPartition, int]
"""For each partition the offset that is read next."""

REQUEST_TIMEOUT_S = 20.0
"""How long a broker may take to answer, a restart of it included."""

STALL_TIMEOUT_S = 60.0
"""How long a range may give nothing before reading it fails."""

OURS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # The end of the log is the only sign that the rest of a range holds no records.
    "enable.partition.eof": True,
    # An offset that is gone is an error to report, not one to skip.
    "auto.offset.reset": "error",
}
"""What reading by offset rests on; a caller cannot set it."""

DEFAULTS: Mapping[str, Any] = {
    "group.id": "headway-ranges",
    # With the default of 1,000 a full queue stops fetching for a second.
    "fetch.queue.backoff.ms": 1,
    # The broker says at once that nothing follows: the end of a range, and the move to the next, wait for that.
    "fetch.wait.max.ms": 1,
    # What is fetched behind the end of a range is fetched for nothing.
    "queued.max.messages.kbytes": 8192,
    # The reason for a failure is in our error; librdkafka would repeat it twenty times a second.
    "log_level": 2,
}


class Range(NamedTuple):
    """The offsets of one partition from `start` to before `end`."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


class RangeReader:
    """A Kafka client that reads level topics by offset.

    `config` is librdkafka's. Raises `ConfigError` for a setting that librdkafka does not know or take.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._servers = config.get("bootstrap.servers")
        self._reasons: list[str] = []
        try:
            self._consumer = confluent_kafka.Consumer({**DEFAULTS, **config, **OURS, "error_cb": self._note})
        except confluent_kafka.KafkaException as error:
            raise ConfigError(f"The Kafka client refuses its configuration: {_text(error)}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def partitions(self, topics: Iterable[str], levels: int) -> list[TopicPartition]:
        """All partitions of the topics at every level. Raises `KafkaError` when a level topic does not exist."""
        return list(
            chain.from_iterable(self._partitions(topic, level, levels) for topic in topics for level in range(levels))
        )

    def starts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset that each partition still holds."""
        return self._offsets(partitions, confluent_kafka.OFFSET_BEGINNING)

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset behind the last that can be read: of a finished transaction, unless uncommitted ones are read."""
        return self._offsets(partitions, confluent_kafka.OFFSET_END)

    def read(self, wanted: Sequence[Range], batch: int = 5_000) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """The records of one range after the other, in batches that are not empty.

        Raises `KafkaError` when Kafka no longer has all of a range, or gives nothing for `STALL_TIMEOUT_S`.
        """
        # The metadata of all topics in one request: a topic that is new to a connected client waits for up to 1 s.
        self._consumer.assign([_kafka_partition(item.partition, item.start) for item in wanted])
        for item in wanted:
            for records in self._read_one(item, batch):
                yield item.partition, records

    def _read_one(self, wanted: Range, batch: int) -> Iterator[list[Message]]:
        self._consumer.assign([_kafka_partition(wanted.partition, wanted.start)])
        position, moved = wanted.start, time.monotonic()
        while position < wanted.end:
            messages = self._consumer.consume(min(batch, wanted.end - position), 0.05)
            if messages:
                position, moved = self._position_after(messages, wanted), time.monotonic()
            elif time.monotonic() - moved > STALL_TIMEOUT_S:
                self._fail(f"{_name(wanted.partition)} gave nothing behind offset {position} for {STALL_TIMEOUT_S:g} s")
            records = _records_before(wanted.end, messages)
            if records:
                yield records

    def _partitions(self, topic: str, level: int, levels: int) -> list[TopicPartition]:
        name = level_topic(topic, level)
        with self._explained(f"The partitions of the Kafka topic {name} could not be listed"):
            found = self._consumer.list_topics(name, timeout=REQUEST_TIMEOUT_S).topics[name]
        if found.error is not None:
            raise KafkaError(
                f"The Kafka topic {name}, level {level} of {topic}, cannot be read: {found.error.str()}. Create it "
                f"(`headway topics create {topic} --levels {levels}`) or correct the topic or the number of levels."
            )
        return [TopicPartition(topic, partition, level) for partition in sorted(found.partitions)]

    def _offsets(self, partitions: Iterable[TopicPartition], time_spec: int) -> Offsets:
        asked = list(partitions)
        if not asked:
            return {}
        with self._explained("The offsets of the subscribed topics could not be listed"):
            # Asked for "times" that mean the beginning and the end, this is one request per broker for all partitions.
            found = self._consumer.offsets_for_times(
                [_kafka_partition(partition, time_spec) for partition in asked], timeout=REQUEST_TIMEOUT_S
            )
        for partition, answer in zip(asked, found, strict=True):
            if answer.error is not None:
                self._fail(f"The offsets of {_name(partition)} could not be listed", answer.error.str())
        return {partition: answer.offset for partition, answer in zip(asked, found, strict=True)}

    def _position_after(self, messages: list[Message], wanted: Range) -> int:
        last = messages[-1]
        for error in filter(None, map(Message.error, messages)):
            if error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
                raise _lost(wanted, error.str())
        offset = last.offset()
        assert offset is not None  # noqa: S101  # records and ends of partitions have one
        if last.error() is None:
            return offset + 1
        if offset < wanted.end and self.ends([wanted.partition])[wanted.partition] < wanted.end:
            raise _lost(wanted, f"the log ends at offset {offset}")
        return offset

    def _note(self, error: confluent_kafka.KafkaError) -> None:
        if error.code() != confluent_kafka.KafkaError._ALL_BROKERS_DOWN:
            self._reasons.append(error.str())

    @contextmanager
    def _explained(self, failure: str) -> Iterator[None]:
        try:
            yield
        except confluent_kafka.KafkaException as error:
            # Serves the error callback, which knows the cause.
            self._consumer.poll(0)
            self._fail(failure, _text(error))

    def _fail(self, failure: str, reason: str = "no answer") -> NoReturn:
        raise KafkaError(
            f"{failure}: {self._reasons[-1] if self._reasons else reason}. Check that a broker runs at "
            f"bootstrap.servers={self._servers} and can be reached from here."
        ) from None


def _records_before(end: int, messages: list[Message]) -> list[Message]:
    """Those that are records, not the end of a partition, up to an offset."""
    if any(map(Message.error, messages)):
        messages = [message for message in messages if message.error() is None]
    return messages[: bisect_left(messages, end, key=methodcaller("offset"))]


def _lost(wanted: Range, reason: str) -> KafkaError:
    return KafkaError(
        f"{_name(wanted.partition)} no longer holds all offsets from {wanted.start} to before {wanted.end}: {reason}. "
        "They have aged out, or the topic was deleted and created again. Start anew with a new checkpoint to go on "
        "without them."
    )


def _kafka_partition(partition: TopicPartition, offset: int) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(level_topic(partition.topic, partition.level), partition.partition, offset)


def _name(partition: TopicPartition) -> str:
    return f"Partition {partition.partition} of the Kafka topic {level_topic(partition.topic, partition.level)}"


def _text(error: confluent_kafka.KafkaException) -> str:
    return str(error.args[0].str()).rstrip(".")
