"""Records and their addresses.

An address is always *(topic, level, partition)*: the topic that the user names, the level (0 is the lowest), and the
partition. `headway.core.levels.naming` gives the Kafka topic for an address.
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
    """One partition of one level of a topic; a topic without levels has level 0.

    `orders-2` is the Kafka topic of level 2, so the numbers are given by name, and the text of an address names both.

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
"""The offset of a delivered record whose offset is not known, because it was sent with `acks=0`."""


class RecordMetadata(NamedTuple):
    """The place of a delivered record, whose offset can be `UNKNOWN_OFFSET`; `timestamp` is in ms since the epoch."""

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
    """A record to be sent: to a level of a topic, or without a level to the topic of exactly that name.

    `value` and `key` are bytes, strings, or objects for the serialisers. `timestamp` is in milliseconds since the
    epoch, by default now. Without a `partition`, the key decides. Once it `expires`, given as a time or in seconds from
    its sending, a `ParallelConsumer` does not start it any more.

    With a `due` time, an aware datetime or a delay (seconds or a timedelta), a relay delivers the record at that time.
    If you give it an `id` of your own, only one record with that id is pending: another one replaces it or, with
    `if_pending="keep"`, is dropped.
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
    """A message as a Kafka client returns it; a `ConsumerRecord` reads its fields on demand."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...


# This is called from C, because the interpreter's specialised calls overlook an error that is set in addition to a
# result. Such an error would be raised later, anywhere.
_call_headers = methodcaller("headers")


_message_of = attrgetter("_message")
_PAIR = 2


def headers_of(message: Message) -> Sequence[Header]:
    """Return the headers of a consumed record, without those whose names are not UTF-8, of which it logs a warning."""
    try:
        return _call_headers(message) or ()
    except SystemError:
        _leave_out_nameless(message)
        return _call_headers(message) or ()


def _leave_out_nameless(message: Message) -> None:
    """Remove the headers whose names the binding could not decode, after its call has failed because of them.

    The binding still keeps the list, with an empty slot in the pair of each such header. Reading that slot would end
    the process. The garbage collector does not list an empty slot among the objects of its pair, which identifies the
    pair.
    """
    pairs = _call_headers(message)
    message.set_headers([pair for pair in pairs if len(get_referents(pair)) == _PAIR])  # type: ignore[attr-defined]
    log.warning(
        "The record at offset %s of partition %s of %s has a header whose name is not UTF-8; that header is left out.",
        *(message.offset(), message.partition(), message.topic()),
    )


class RecordSource(NamedTuple):
    """The fields that all records of one level share."""

    level: int
    topic_suffix: str
    read_key: Callable[[Message], Any]
    read_value: Callable[[Message], Any]


# A `ConsumerRecord` is made for each consumed record, and a struct takes a third of the time of a class with an
# `__init__`. The garbage collector does not track it, because its fields never lead back to it.


class ConsumerRecord(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A record as it was consumed: a view that reads and deserialises a field on demand.

    `value` is the value, deserialised if `value.deserializer` is set.

    `key` and `value` raise `DeserializationError` if a deserialiser fails; `raw_key` and `raw_value` are the bytes in
    any case.
    """

    _message: Message
    _source: RecordSource
    value: Any

    @property
    def topic(self) -> str:
        """The topic that was subscribed to: `orders`, whichever level the record came from."""
        return self.kafka_topic.removesuffix(self._source.topic_suffix)

    @property
    def kafka_topic(self) -> str:
        """The topic in Kafka: `orders-2` for level 2 of `orders`."""
        return self._message.topic()  # type: ignore[return-value]  # a consumed record has one

    @property
    def level(self) -> int:
        """The level; 0 is the lowest."""
        return self._source.level

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._message.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        return self._message.offset()  # type: ignore[return-value]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record came from."""
        # This runs for each record, and a call with keywords would take three times as long.
        return tuple.__new__(TopicPartition, (self.topic, self.partition, self.level))

    @property
    def key(self) -> Any:
        """The key, deserialised if `key.deserializer` is set."""
        return self._source.read_key(self._message)

    @property
    def raw_key(self) -> bytes | None:
        """The key's bytes."""
        return self._message.key()  # type: ignore[no-any-return]

    @property
    def raw_value(self) -> bytes | None:
        """The value's bytes."""
        return self._message.value()  # type: ignore[no-any-return]

    @property
    def headers(self) -> Sequence[Header]:
        """The headers in their order; a name can occur more than once."""
        return headers_of(self._message)

    @property
    def origin(self) -> Origin:
        """The place at which the record was first sent; it stays the same after `RetryLater` and as a dead letter.

        It also stays the same when a dead letter is sent again. `str(record.origin)` is an id of the record, such as
        `orders-0-17`.
        """
        history = history_of(self.headers, self.kafka_topic)
        return history.origin if history else Origin(self.kafka_topic, self.partition, self.offset)

    @property
    def timestamp(self) -> int:
        """When the record was created or appended, as its topic is set up, in milliseconds since the epoch."""
        return self._message.timestamp()[1]

    @property
    def expires(self) -> int | None:
        """The time at which the record expires, in milliseconds since the epoch; None if its sender set none."""
        return expiry_of(self.headers)

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that the record was read from, if the broker reports it."""
        return self._message.leader_epoch()

    # The representation shows neither key nor value, because they can be secret or large.

    def __repr__(self) -> str:
        return f"ConsumerRecord({self.topic!r}, level={self.level}, partition={self.partition}, offset={self.offset})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("topic", "level", "partition", "offset")]


def with_headers(records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
    """Return the records that have headers; this is quick if none has any."""
    messages = list(map(_message_of, records))
    left = iter(messages)
    try:
        if not any(map(_call_headers, left)):  # runs entirely in C
            return ()
    except SystemError:
        _leave_out_nameless(messages[-length_hint(left) - 1])
    return [record for record in records if record.headers]


class DeserializedRecord(ConsumerRecord, frozen=True, eq=False, gc=False):
    """A record whose value is deserialised on demand."""

    @property  # type: ignore[misc]  # the field is left to itself
    def value(self) -> Any:
        """The value, deserialised."""
        return self._source.read_value(self._message)
