"""The types of records and of their addresses.

The address of a partition is always *(topic, level, partition)*: the topic as the user names it, the level (0 is the
lowest), and the partition's number. `headway.core.levels.naming` gives the Kafka topic for an address.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from gc import get_referents
from operator import attrgetter, length_hint, methodcaller
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec

from headway.records.expiry import expiry_of
from headway.records.history import Origin, history_of

log = logging.getLogger(__name__)

Header = tuple[str, str | bytes | None]


class _Address(NamedTuple):
    topic: str
    partition: int
    level: int


class TopicPartition(_Address):
    """A partition of one level of a topic. A topic without levels has only level 0.

    `orders-2` is the Kafka topic of level 2, and not partition 2 of `orders`. To prevent such confusion, the numbers
    are keyword-only arguments, and `str()` of a partition labels each number.

    >>> print(TopicPartition("orders", partition=3, level=2))
    partition 3 of orders at level 2
    """

    __slots__ = ()

    def __new__(cls, topic: str, *, partition: int, level: int = 0) -> Self:
        return tuple.__new__(cls, (topic, partition, level))

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic} at level {self.level}"

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, int]]:
        return (self.topic,), {"partition": self.partition, "level": self.level}


UNKNOWN_OFFSET = -1
"""The offset of a delivered record if Kafka did not report an offset because the record was sent with `acks=0`."""


class RecordMetadata(NamedTuple):
    """The place where a delivered record is stored.

    `offset` can be `UNKNOWN_OFFSET`. `timestamp` is in milliseconds since the epoch.
    """

    topic: str
    partition: int
    level: int
    offset: int
    timestamp: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that holds the record."""
        return TopicPartition(self.topic, partition=self.partition, level=self.level)


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send to a level of a topic. Without a `level`, it is sent to the Kafka topic with exactly that name.

    `value` and `key` are bytes, strings, or objects for the serialisers. `timestamp` is in milliseconds since the
    epoch, and is the current time by default. Without a `partition`, the key determines the partition. `expires` is a
    time, or a number of seconds after the record is sent; from then on, a `ParallelConsumer` no longer starts the
    record.

    `due` is an aware datetime, or a delay as a timedelta or in seconds; a relay delivers the record at that time. If
    you give the record an `id`, at most one record with that id is pending at a time: a later record with the same id
    replaces the pending record, or is dropped if `if_pending` is "keep".
    """

    topic: str
    value: Any = field(default=None, repr=False)
    key: Any = field(default=None, repr=False)
    level: int | None = None
    headers: Sequence[Header] = field(default=(), repr=False)
    partition: int | None = None
    timestamp: int | None = None
    expires: datetime | timedelta | float | None = None
    due: datetime | timedelta | float | None = None
    id: str | None = None
    if_pending: Literal["replace", "keep"] = "replace"


class Message(Protocol):
    """A message as a Kafka client returns it. A `ConsumerRecord` reads its fields from a message on demand."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...


# `methodcaller` makes this call from C code. The interpreter's specialised call instructions would miss an error that a
# function sets while it also returns a result, and the error would then surface later, at an unrelated place.
_call_headers = methodcaller("headers")


_message_of = attrgetter("_message")
_PAIR = 2


def headers_of(message: Message) -> Sequence[Header]:
    """Return the headers of a consumed record.

    Headers whose names are not UTF-8 are left out, and a warning about them is logged.
    """
    try:
        return _call_headers(message) or ()
    except SystemError:
        _leave_out_nameless(message)
        return _call_headers(message) or ()


def _leave_out_nameless(message: Message) -> None:
    """Remove the headers whose names the binding cannot decode. This is called after `message.headers()` has failed.

    The message still holds the full list of (name, value) pairs. The pair of an undecodable header has an empty slot,
    and reading that slot would crash the process. The garbage collector does not list empty slots as referents, so a
    pair with fewer than two referents is an undecodable header.
    """
    pairs = _call_headers(message)
    message.set_headers([pair for pair in pairs if len(get_referents(pair)) == _PAIR])  # type: ignore[attr-defined]
    log.warning(
        "The record at offset %s of partition %s of %s has a header whose name is not UTF-8. That header is left out.",
        *(message.offset(), message.partition(), message.topic()),
    )


class RecordSource(NamedTuple):
    """The fields that all records of one level have in common."""

    level: int
    topic_suffix: str
    read_key: Callable[[Message], Any]
    read_value: Callable[[Message], Any]


# This class is a struct because one object is created for each consumed record, and creating a struct takes a third of
# the time that a class with `__init__` needs. The garbage collector does not have to track the struct, because its
# fields never refer back to it.


class ConsumerRecord(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A consumed record. Its fields are read and deserialised on demand.

    `value` is deserialised if the setting `value.deserializer` is present.

    Reading `key` or `value` raises `DeserializationError` if a deserialiser fails. `raw_key` and `raw_value` always
    return the bytes.
    """

    _message: Message
    _source: RecordSource
    value: Any

    @property
    def topic(self) -> str:
        """The topic's name without a level, such as `orders`, whichever level the record came from."""
        return self.kafka_topic.removesuffix(self._source.topic_suffix)

    @property
    def kafka_topic(self) -> str:
        """The topic's name in Kafka, such as `orders-2` for level 2 of `orders`."""
        return self._message.topic()  # type: ignore[return-value]  # a consumed record always has a topic

    @property
    def level(self) -> int:
        """The level of the record; 0 is the lowest."""
        return self._source.level

    @property
    def partition(self) -> int:
        """The number of the partition that the record came from."""
        return self._message.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
        return self._message.offset()  # type: ignore[return-value]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record came from."""
        # This code runs for each record, and a call with keyword arguments would take three times as long.
        return tuple.__new__(TopicPartition, (self.topic, self.partition, self.level))

    @property
    def key(self) -> Any:
        """The key, deserialised if the setting `key.deserializer` is present."""
        return self._source.read_key(self._message)

    @property
    def raw_key(self) -> bytes | None:
        """The bytes of the key."""
        return self._message.key()  # type: ignore[no-any-return]

    @property
    def raw_value(self) -> bytes | None:
        """The bytes of the value."""
        return self._message.value()  # type: ignore[no-any-return]

    @property
    def headers(self) -> Sequence[Header]:
        """The headers in their original order. Several headers can have the same name."""
        return headers_of(self._message)

    @property
    def origin(self) -> Origin:
        """The place where the record was first stored.

        The origin stays the same when the record is sent again after `RetryLater`, when it becomes a dead letter, and
        when the dead letter is sent back to its topic. `str(record.origin)` identifies the record, for example as
        `orders-0-17`.
        """
        history = history_of(self.headers, self.kafka_topic)
        return history.origin if history else Origin(self.kafka_topic, self.partition, self.offset)

    @property
    def timestamp(self) -> int:
        """The record's timestamp in milliseconds since the epoch.

        The timestamp is the time when the record was created, or appended to the log if the topic is configured to use
        that time.
        """
        return self._message.timestamp()[1]

    @property
    def expires(self) -> int | None:
        """The time at which the record expires, in milliseconds since the epoch, or None if it never expires."""
        return expiry_of(self.headers)

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the partition when the record was fetched, or None if the broker does not report it."""
        return self._message.leader_epoch()

    # `repr()` leaves out the key and the value, because these can be secret or large.

    def __repr__(self) -> str:
        return f"ConsumerRecord({self.topic!r}, level={self.level}, partition={self.partition}, offset={self.offset})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("topic", "level", "partition", "offset")]


def with_headers(records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
    """Return the records that have headers. The function is fast if no record has headers."""
    messages = list(map(_message_of, records))
    left = iter(messages)
    try:
        if not any(map(_call_headers, left)):  # this loop runs entirely in C
            return ()
    except SystemError:
        _leave_out_nameless(messages[-length_hint(left) - 1])
    return [record for record in records if record.headers]


def messages_of(records: Sequence[ConsumerRecord]) -> list[Message]:
    """Return the clients' messages that these records read their fields from."""
    return list(map(_message_of, records))


class DeserializedRecord(ConsumerRecord, frozen=True, eq=False, gc=False):
    """A consumed record that deserialises its value each time `value` is read."""

    @property  # type: ignore[misc]  # the property replaces the field
    def value(self) -> Any:
        """The deserialised value."""
        return self._source.read_value(self._message)
