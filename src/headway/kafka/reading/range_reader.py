"""Reading by offset: the records of ranges of topics.

The caller keeps the progress, so no group is joined and nothing is committed. A range ends when the position has
reached its end, not after a number of records, because compaction and transaction markers leave offsets without a
record.
"""

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import NamedTuple

import confluent_kafka as ck
from confluent_kafka import Message

from headway.errors import KafkaError
from headway.kafka.admin import describe
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.unpacking import Unpacking, is_not_unpacked
from headway.kafka.missing_rights import why_not_readable
from headway.kafka.reading.log_bounds import watermarks
from headway.kafka.reading.topic_naming import kafka_topic
from headway.kafka.reading.unjoined_consumer import OURS as UNJOINED
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.records.record_types import TopicPartition
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

__all__ = [
    "HOW_TO_GO_ON",
    "OURS",
    "Message",
    "Offsets",
    "Range",
    "RangeReader",
    "fetched_ahead",
    "name_of",
    "no_longer_holds",
]

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]
"""The next offset to read of each partition."""

STALL_TIMEOUT_S = 60.0
"""The seconds without a record after which reading fails."""

TOGETHER = 20_000
"""The number of offsets in open ranges below which the next range begins, because reading in turn takes longer."""

MOST_TOGETHER = 500
"""The most ranges that are read at the same time, because every fetch names all of them."""

HOW_TO_GO_ON = (
    "Retention has deleted records, or the topic was deleted and created again. Set failOnDataLoss to false to "
    "continue without the lost records, or start again with a new checkpoint."
)

OURS: Config = {
    **UNJOINED,
    # The end of the log is the only sign that the rest of a range holds no records.
    "enable.partition.eof": True,
}
"""The settings that reading by offset needs, which a caller cannot change."""

DEFAULTS: Config = {
    # With the default of 1,000 a full queue stops fetching for a second.
    "fetch.queue.backoff.ms": 1,
    # The end of a range is known only when the broker answers that nothing follows, so it should answer at once.
    "fetch.wait.max.ms": 1,
    "queued.max.messages.kbytes": 8192,
    # The error that is raised has the reason for a failure, which librdkafka would log twenty times a second.
    "log_level": 2,
}

_LOST = (
    ck.KafkaError._AUTO_OFFSET_RESET,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError.OFFSET_OUT_OF_RANGE,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""The errors that mean that offsets are lost. After any other error, such as a missing right, they still exist."""

_KafkaPartition = tuple[str | None, int | None]  # Kafka's topic and partition
_LIKELY_SIZE = 64  # bytes of a record; a range of larger records takes more than one fetch
_LEAST_FETCH, _MOST_FETCH = 65_536, 1_048_576  # bytes of a partition in one fetch; the most is librdkafka's default
_FEW = 128  # messages


class Range(NamedTuple):
    """The offsets of one partition from `start` to before `end`."""

    partition: TopicPartition
    start: int
    end: int

    # Not `__len__`: to pickle a tuple takes memory for as many items as its length says, and Spark pickles all ranges.
    @property
    def length(self) -> int:
        """The number of offsets; with gaps there are fewer records."""
        return self.end - self.start


def fetched_ahead(wanted: Sequence[Range]) -> dict[str, int]:
    """Return the settings for how much is fetched ahead of the reader, and of a partition at a time.

    Records fetched from behind the end of a range are useless, and cost the broker and the client as much as those
    that are read. But with too little fetched ahead, a long range is waited for.

    >>> partition = TopicPartition("orders", partition=0)
    >>> fetched_ahead([Range(partition, 0, 500)])
    {'queued.max.messages.kbytes': 1024, 'fetch.message.max.bytes': 65536}
    >>> fetched_ahead([Range(partition, 0, 30_000)])
    {'queued.max.messages.kbytes': 1875, 'fetch.message.max.bytes': 1048576}
    """
    likely = max((item.length for item in wanted), default=0) * _LIKELY_SIZE
    least, most = 1024, DEFAULTS["queued.max.messages.kbytes"]
    return {
        "queued.max.messages.kbytes": min(most, max(least, likely // 1024)),
        "fetch.message.max.bytes": min(_MOST_FETCH, max(_LEAST_FETCH, likely)),
    }


class _Window:
    """The ranges that are read now, and those that wait for their turn.

    The next range begins before the previous one ends. Otherwise the reader would wait for the broker at each range.
    """

    def __init__(self, wanted: Sequence[Range]) -> None:
        self._waiting = deque(item for item in wanted if item.length > 0)  # nothing would arrive for an empty range
        self.open: dict[_KafkaPartition, Range] = {}
        self.left = 0  # offsets of the ranges that are open

    def fill(self, start: Callable[[Range], None]) -> bool:
        """Start the ranges whose turn it is; return False if all have been read."""
        while self._waiting and self.left < TOGETHER and len(self.open) < MOST_TOGETHER:
            item = self._waiting[0]
            if _place(item) in self.open:
                break  # only one range of a partition is read at a time
            start(item)
            self.open[_place(item)] = self._waiting.popleft()
            self.left += item.length
        return bool(self.open)

    def shrink(self, place: _KafkaPartition, rest: Range) -> None:
        """Note what is left of an open range."""
        self.left -= self.open[place].length - rest.length
        if rest.length:
            self.open[place] = rest
        else:
            del self.open[place]


class RangeReader(Closable):
    """A Kafka client that reads ranges of topics.

    `config` has the settings of librdkafka. With `skip_lost`, offsets that Kafka no longer has are logged and skipped.
    Raises `ConfigError` for a setting that librdkafka does not know or accept.
    """

    def __init__(self, config: Config, *, skip_lost: bool = False) -> None:
        self._skip_lost = skip_lost
        self._config = config
        self._connection = Connection()
        ours = {**OURS, "auto.offset.reset": "earliest" if skip_lost else "error"}
        self._consumer = unjoined_consumer({**DEFAULTS, **config, **ours}, self._connection)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def read(self, wanted: Sequence[Range], batch: int = 5_000) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """Yield the ranges' records in non-empty batches of one partition, each partition in order.

        Raises `KafkaError` if Kafka no longer has all of a range and lost offsets must not be skipped. Also raises it
        if nothing arrives for `STALL_TIMEOUT_S`. Raises `AuthenticationError` if the brokers refuse the login, and
        `AuthorizationError` if the right to read a topic is missing.
        """
        self._consumer.assign([])  # stops the partitions of an earlier call that ended early
        self._consumer.find_leaders({kafka_topic(item.partition) for item in wanted})  # one question for all topics
        window = _Window(wanted)
        longest = max((item.length for item in wanted), default=0)
        moved = time.monotonic()
        while window.fill(self._start):
            # Messages after the end of a range are useless, and a few more calls cost little.
            messages = self._consumer.consume(min(batch, window.left, max(_FEW, longest)), 0.05)
            self._connection.check(self._consumer)
            has_errors = any(map(Message.error, messages))
            for place, group in _by_place(messages, alone=len(window.open) == 1 and not has_errors):
                if (item := window.open.get(place)) is None:
                    continue  # a range that has ended; records after it were fetched along with it
                errors = list(filter(Message.error, group)) if has_errors else []
                records = _records_within(item, group, errors)
                if self._skip_lost and (group[0].offset() or 0) > item.start:
                    self._warn_if_aged_out(item)
                if records:
                    yield item.partition, records
                rest = self._rest(item, group, errors)
                window.shrink(place, rest)
                if not rest.length:
                    self._consumer.stop(kafka_topic(item.partition), item.partition.partition)
                moved = time.monotonic()  # messages after the end of a range are not progress
            if time.monotonic() - moved > STALL_TIMEOUT_S:
                raise self._stalled(next(iter(window.open.values())))

    def _start(self, item: Range) -> None:
        self._consumer.start(kafka_topic(item.partition), item.partition.partition, item.start)

    def _rest(self, item: Range, messages: list[Message], errors: list[Message]) -> Range:
        """Return the rest of a range after these messages."""
        return item._replace(start=min(item.end, self._position_after(messages, errors, item)))

    def _position_after(self, messages: list[Message], errors: list[Message], wanted: Range) -> int:
        last = messages[-1]
        for message in errors:
            error = message.error()
            assert error is not None  # noqa: S101  # the caller has selected messages with an error
            if is_not_unpacked(error):
                raise KafkaError(Unpacking(self._config).sentence(message))
            if error.code() in _LOST:
                return self._lost(wanted, error.str())
            if refused := why_not_readable(error, kafka_topic(wanted.partition), self._config):
                raise refused
            if error.code() != ck.KafkaError._PARTITION_EOF:
                raise KafkaError(f"{_capitalised(name_of(wanted.partition))} cannot be read: {describe(error)}.")
        offset = last.offset()
        assert offset is not None  # noqa: S101  # records and ends of partitions have an offset
        if last.error() is None:
            return max(wanted.start, offset + 1)
        if offset < wanted.end and self._bounds(wanted.partition)[1] < wanted.end:
            return self._lost(wanted, f"the log ends at offset {offset}")
        return max(wanted.start, offset)

    def _bounds(self, partition: TopicPartition) -> tuple[int, int]:
        place = kafka_topic(partition), partition.partition
        return watermarks(self._consumer, place, STALL_TIMEOUT_S, self._config)

    def _warn_if_aged_out(self, wanted: Range) -> None:
        """Log a loss if the log begins after the start of the range. A gap alone may come from compaction."""
        begin, _ = self._bounds(wanted.partition)
        if begin > wanted.start:
            self._lost(wanted, f"it begins at {begin}")

    def _lost(self, wanted: Range, reason: str) -> int:
        """Return the end of the range, to skip lost records, or raise `KafkaError` if they must not be skipped."""
        if not self._skip_lost:
            raise KafkaError(f"{no_longer_holds(wanted, reason)} {HOW_TO_GO_ON}")
        log.warning("%s The lost records are skipped.", no_longer_holds(wanted, reason))
        return wanted.end

    def _stalled(self, wanted: Range) -> KafkaError:
        return KafkaError(
            f"No record of {name_of(wanted.partition)} from offset {wanted.start} on arrived for "
            f"{STALL_TIMEOUT_S:g} s ({self._connection.reason}). Check that its broker runs and that the tasks can "
            "reach it."
        )


def name_of(partition: TopicPartition) -> str:
    """Return the name of a partition, for a sentence.

    >>> name_of(TopicPartition("orders", partition=3, level=2))
    'partition 3 of the Kafka topic orders-2'
    """
    return f"partition {partition.partition} of the Kafka topic {kafka_topic(partition)}"


def no_longer_holds(wanted: Range, reason: str) -> str:
    """Return a sentence about a range whose offsets Kafka no longer has in full."""
    return (
        f"{_capitalised(name_of(wanted.partition))} no longer holds all offsets from {wanted.start} to before "
        f"{wanted.end} ({reason.rstrip('.')})."
    )


def _place(item: Range) -> _KafkaPartition:
    return kafka_topic(item.partition), item.partition.partition


def _by_place(messages: list[Message], *, alone: bool) -> list[tuple[_KafkaPartition, list[Message]]]:
    """Return the messages of each partition, in their order.

    With `alone`, only one range is open, and so all messages have one partition if the first and the last do.
    """
    if not messages:
        return []
    first, last = ((each.topic(), each.partition()) for each in (messages[0], messages[-1]))
    if alone and first == last:
        return [(first, messages)]
    groups: dict[_KafkaPartition, list[Message]] = {}
    for message in messages:
        groups.setdefault((message.topic(), message.partition()), []).append(message)
    return list(groups.items())


def _records_within(wanted: Range, messages: list[Message], errors: list[Message]) -> list[Message]:
    """Return the messages within the range that are records, not the end of a partition."""
    if errors:
        messages = [message for message in messages if message.error() is None]
    offset = methodcaller("offset")
    first, end = (bisect_left(messages, bound, key=offset) for bound in (wanted.start, wanted.end))
    return messages[first:end]


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
