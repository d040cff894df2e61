"""Reads ranges of records by offset.

The caller keeps track of the progress, so no group is joined and no offset is committed. Reading a range ends when the
position reaches the end of the range, not after a certain number of records, because compaction and transaction markers
leave offsets without a record.
"""

import itertools
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from operator import methodcaller
from typing import Generic, NamedTuple, Protocol, TypeVar

import confluent_kafka as ck
from confluent_kafka import Message

from headway.errors import KafkaError
from headway.kafka.admin import describe
from headway.kafka.binding.columns import ColumnQueue, RecordRun
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.unpacking import Unpacking, is_not_unpacked
from headway.kafka.missing_permissions import why_not_readable
from headway.kafka.reading.log_bounds import watermarks
from headway.kafka.reading.topic_naming import kafka_topic
from headway.kafka.reading.unjoined_consumer import OURS as UNJOINED
from headway.kafka.reading.unjoined_consumer import UnjoinedConsumer, unjoined_consumer
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

R = TypeVar("R", bound=Sized)

Offsets = dict[TopicPartition, int]
"""The next offset to read of each partition."""

STALL_TIMEOUT_S = 60.0
"""Reading fails if no record arrives for this many seconds."""

TOGETHER = 20_000
"""When the open ranges have fewer unread offsets than this, the next range is started.

It is faster to read several ranges at the same time than one after the other.
"""

MOST_TOGETHER = 500
"""The maximum number of ranges that are read at the same time, because every fetch names all of them."""

HOW_TO_GO_ON = (
    "Kafka has deleted records because of their age, or the topic was deleted and created again. Set failOnDataLoss "
    "to false to continue without the lost records, or start again with a new checkpoint."
)

OURS: Config = {
    **UNJOINED,
    # Only when the end of the log is reached is it certain that the rest of a range holds no records.
    "enable.partition.eof": True,
}
"""The settings that reading by offset needs. A caller cannot change them."""

DEFAULTS: Config = {
    # With the default of 1,000, fetching stops for a second when a queue is full.
    "fetch.queue.backoff.ms": 1,
    # The end of a range is known only when the broker answers that there are no further records, so the broker should
    # answer at once.
    "fetch.wait.max.ms": 1,
    "queued.max.messages.kbytes": 8192,
    # librdkafka would log the reason for a failure twenty times a second, and the error that is raised names it anyway.
    "log_level": 2,
}

_LOST = (
    ck.KafkaError._AUTO_OFFSET_RESET,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError.OFFSET_OUT_OF_RANGE,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""The errors that mean that offsets are lost. After any other error, such as a missing permission, they still exist."""

_KafkaPartition = tuple[str | None, int | None]  # the Kafka topic and the number of the partition
_LIKELY_SIZE = 64  # the assumed size of a record in bytes; if the records are larger, a range takes more than one fetch
# The smallest and the largest limit for the bytes of one partition in a fetch. The largest is librdkafka's default.
_LEAST_FETCH, _MOST_FETCH = 65_536, 1_048_576
_FEW = 128  # messages
_WITHIN = 0.05  # seconds that one call waits for messages


class Range(NamedTuple):
    """A range of offsets of one partition, from `start` up to but not including `end`."""

    partition: TopicPartition
    start: int
    end: int

    # This property is not `__len__`, because pickling a tuple allocates memory for as many items as `__len__` returns,
    # and Spark pickles all ranges.
    @property
    def length(self) -> int:
        """The number of offsets in the range.

        The range may have fewer records, because some offsets may have no record.
        """
        return self.end - self.start


def fetched_ahead(wanted: Sequence[Range]) -> dict[str, int]:
    """Return settings that limit how much is fetched ahead of the reader, and from one partition in one fetch.

    Fetched records after the end of a range are useless, and cost the broker and the client as much as those that are
    read. But if too few records are fetched ahead, the reader has to wait for the records of a long range.

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
    """The ranges that are being read, and those that will be read later.

    The next range is started before the previous one ends. Otherwise the reader would have to wait for the broker at
    the beginning of each range.
    """

    def __init__(self, wanted: Sequence[Range]) -> None:
        self._waiting = deque(item for item in wanted if item.length > 0)  # an empty range would never receive a record
        self.open: dict[_KafkaPartition, Range] = {}
        self.left = 0  # number of unread offsets in the ranges that are being read

    def fill(self, start: Callable[[Range], None]) -> bool:
        """Start the next ranges if there is space for them. Returns False if all ranges have been read."""
        while self._waiting and self.left < TOGETHER and len(self.open) < MOST_TOGETHER:
            item = self._waiting[0]
            if _place(item) in self.open:
                break  # only one range of a partition is read at a time
            start(item)
            self.open[_place(item)] = self._waiting.popleft()
            self.left += item.length
        return bool(self.open)

    def shrink(self, place: _KafkaPartition, rest: Range) -> None:
        """Replace a range that is being read with the unread rest of the range."""
        self.left -= self.open[place].length - rest.length
        if rest.length:
            self.open[place] = rest
        else:
            del self.open[place]


class _Arrival(NamedTuple, Generic[R]):
    """Consecutive records of one partition, or an event that has an error. In that case, `records` is None.

    `first` and `last` are the offsets of the first and the last record, or both are the offset of the event.
    """

    place: _KafkaPartition
    first: int
    last: int
    records: R | None
    event: Message | None = None


class _Source(Protocol[R]):
    """Starts partitions, and takes what librdkafka has fetched from them."""

    def start(self, item: Range) -> None: ...

    def take(self, most: int, *, alone: bool) -> list[_Arrival[R]]:
        """Return the next messages. If `alone` is True, only one range is being read."""

    def between(self, records: R, first: int, end: int) -> R:
        """Return the records at or after the offset `first` and before the offset `end`."""


class _Messages:
    """Takes each record as a message, with the binding's `consume`."""

    def __init__(self, consumer: UnjoinedConsumer) -> None:
        self._consumer = consumer

    def start(self, item: Range) -> None:
        self._consumer.start(*_place(item), item.start)

    def take(self, most: int, *, alone: bool) -> list[_Arrival[list[Message]]]:
        messages = self._consumer.consume(most, _WITHIN)
        if any(map(Message.error, messages)):
            return _between_events(messages)
        return [_of_messages(place, group) for place, group in _by_place(messages, alone=alone)]

    def between(self, records: list[Message], first: int, end: int) -> list[Message]:
        offset = methodcaller("offset")
        start, stop = (bisect_left(records, bound, key=offset) for bound in (first, end))
        return records[start:stop]


class _Runs:
    """Takes records as Arrow columns, from a queue that only the partitions use."""

    def __init__(self, consumer: UnjoinedConsumer) -> None:
        self._consumer = consumer
        self.queue = ColumnQueue(consumer)

    def start(self, item: Range) -> None:
        self._consumer.start(*_place(item), item.start, self.queue.address)

    def take(self, most: int, *, alone: bool) -> list[_Arrival[RecordRun]]:
        found = self.queue.take(most, _WITHIN)
        arrivals = [
            _of_event(each) if isinstance(each, Message) else _Arrival(each.place, each.first, each.last, each)
            for each in found
        ]
        # Events of the client itself arrive in its common queue, and only the binding can call their callbacks.
        return arrivals + [_of_event(each) for each in self._consumer.consume(_FEW, 0) if each.error()]

    def between(self, records: RecordRun, first: int, end: int) -> RecordRun:
        return records.between(first, end)


class RangeReader(Closable):
    """Reads ranges of records with a client that is not a member of any group.

    `config` has the settings of librdkafka. If `skip_lost` is True, offsets that Kafka no longer has are logged and
    skipped. Raises `ConfigError` for a setting that librdkafka does not know, or a value that it does not accept.
    """

    def __init__(self, config: Config, *, skip_lost: bool = False) -> None:
        self._skip_lost = skip_lost
        self._config = config
        self._connection = Connection()
        ours = {**OURS, "auto.offset.reset": "earliest" if skip_lost else "error"}
        self._consumer = unjoined_consumer({**DEFAULTS, **config, **ours}, self._connection)
        self._runs: _Runs | None = None

    def close(self) -> None:
        """Close the connections."""
        if self._runs:
            self._runs.queue.close()
        self._consumer.close()

    def read(self, wanted: Sequence[Range], batch: int = 5_000) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """Yield the records of the ranges in non-empty batches. Each batch has records of one partition, in order.

        Raises `KafkaError` if Kafka no longer has all offsets of a range and `skip_lost` is False, or if no record
        arrives for `STALL_TIMEOUT_S`. Raises `AuthenticationError` if the brokers refuse the login, and
        `AuthorizationError` if this client is not permitted to read a topic.
        """
        return self._read(_Messages(self._consumer), wanted, batch)

    def read_columns(self, wanted: Sequence[Range], batch: int = 5_000) -> Iterator[tuple[TopicPartition, RecordRun]]:
        """Yield the records of the ranges as Arrow columns, without their headers.

        This needs a fifth of the time of `read`, and is possible if `columns.IS_COMPILED`. In all other respects, it is
        the same as `read`.
        """
        self._runs = self._runs or _Runs(self._consumer)
        return self._read(self._runs, wanted, batch)

    def _read(self, source: _Source[R], wanted: Sequence[Range], batch: int) -> Iterator[tuple[TopicPartition, R]]:
        self._consumer.assign([])  # stops partitions that an earlier, unfinished call was reading
        self._consumer.find_leaders({kafka_topic(item.partition) for item in wanted})  # one request for all topics
        window = _Window(wanted)
        longest = max((item.length for item in wanted), default=0)
        moved = time.monotonic()
        while window.fill(source.start):
            # Few messages are requested at a time, because messages after the end of a range are useless, and
            # additional calls cost little.
            most = min(batch, window.left, max(_FEW, longest))
            arrivals = source.take(most, alone=len(window.open) == 1)
            self._connection.check(self._consumer)
            for arrival in arrivals:
                if (item := window.open.get(arrival.place)) is None:
                    continue  # this range has ended, but the same fetch returned later records as well
                if self._skip_lost and arrival.first > item.start:
                    self._warn_if_aged_out(item)
                if arrival.records is not None:
                    records = source.between(arrival.records, item.start, item.end)
                    if len(records):
                        yield item.partition, records
                rest = item._replace(start=min(item.end, self._position_after(arrival, item)))
                window.shrink(arrival.place, rest)
                if not rest.length:
                    self._consumer.stop(*_place(item))
                moved = time.monotonic()  # messages after the end of a range do not count as progress
            if time.monotonic() - moved > STALL_TIMEOUT_S:
                raise self._stalled(next(iter(window.open.values())))

    def _position_after(self, arrival: _Arrival[R], wanted: Range) -> int:
        if arrival.event is None:
            return max(wanted.start, arrival.last + 1)
        error = arrival.event.error()
        assert error is not None  # noqa: S101  # only messages with an error are events
        if is_not_unpacked(error):
            raise KafkaError(Unpacking(self._config).sentence(arrival.event))
        if error.code() in _LOST:
            return self._lost(wanted, error.str())
        if refused := why_not_readable(error, kafka_topic(wanted.partition), self._config):
            raise refused
        if error.code() != ck.KafkaError._PARTITION_EOF:
            raise KafkaError(f"{_capitalised(name_of(wanted.partition))} cannot be read: {describe(error)}.")
        if arrival.last < wanted.end and self._bounds(wanted.partition)[1] < wanted.end:
            return self._lost(wanted, f"the log ends at offset {arrival.last}")
        return max(wanted.start, arrival.last)

    def _bounds(self, partition: TopicPartition) -> tuple[int, int]:
        place = kafka_topic(partition), partition.partition
        return watermarks(self._consumer, place, STALL_TIMEOUT_S, self._config)

    def _warn_if_aged_out(self, wanted: Range) -> None:
        """Log a loss of records if the log begins after the start of the range.

        A gap within the log does not count as a loss, because compaction can cause it.
        """
        begin, _ = self._bounds(wanted.partition)
        if begin > wanted.start:
            self._lost(wanted, f"it begins at {begin}")

    def _lost(self, wanted: Range, reason: str) -> int:
        """Return the end of the range, where reading continues.

        Raises `KafkaError` if lost records must not be skipped.
        """
        if not self._skip_lost:
            raise KafkaError(f"{no_longer_holds(wanted, reason)} {HOW_TO_GO_ON}")
        log.warning("%s The lost records are skipped.", no_longer_holds(wanted, reason))
        return wanted.end

    def _stalled(self, wanted: Range) -> KafkaError:
        return KafkaError(
            f"No record of {name_of(wanted.partition)} at or after offset {wanted.start} arrived for "
            f"{STALL_TIMEOUT_S:g} s ({self._connection.reason}). Check that the partition's broker is up, and "
            "that the tasks can reach it."
        )


def name_of(partition: TopicPartition) -> str:
    """Return the name of a partition for use in a sentence.

    >>> name_of(TopicPartition("orders", partition=3, level=2))
    'partition 3 of the Kafka topic orders-2'
    """
    return f"partition {partition.partition} of the Kafka topic {kafka_topic(partition)}"


def no_longer_holds(wanted: Range, reason: str) -> str:
    """Return a sentence that says that Kafka no longer has all offsets of a range."""
    return (
        f"{_capitalised(name_of(wanted.partition))} no longer holds all offsets from {wanted.start} to before "
        f"{wanted.end} ({reason.rstrip('.')})."
    )


def _place(item: Range) -> tuple[str, int]:
    return kafka_topic(item.partition), item.partition.partition


def _by_place(messages: list[Message], *, alone: bool) -> list[tuple[_KafkaPartition, list[Message]]]:
    """Group messages by partition. The order of each partition's messages is kept.

    If `alone` is True, only one range is being read. In that case, all messages belong to one partition if the first
    and the last message do.
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


def _between_events(messages: list[Message]) -> list[_Arrival[list[Message]]]:
    """Return the events, and the records before, between and after them, of each partition in their order."""
    arrivals: list[_Arrival[list[Message]]] = []
    for place, group in _by_place(messages, alone=False):
        for is_event, same in itertools.groupby(group, lambda message: message.error() is not None):
            some = list(same)
            arrivals += map(_of_event, some) if is_event else [_of_messages(place, some)]
    return arrivals


def _of_messages(place: _KafkaPartition, records: list[Message]) -> _Arrival[list[Message]]:
    return _Arrival(place, records[0].offset() or 0, records[-1].offset() or 0, records)


def _of_event(message: Message) -> _Arrival[R]:
    offset = message.offset() or 0
    return _Arrival((message.topic(), message.partition()), offset, offset, None, message)


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
