"""Dead letters: parses their headers, and filters them."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from headway.core.selectors.conditions import FieldValue
from headway.core.selectors.parser import HEADER as HEADER_FIELD
from headway.core.selectors.selector import Selector
from headway.dead_letters import PREFIX
from headway.records.expiry import HEADER as EXPIRES
from headway.records.history import HEADER, History, Origin, history_of
from headway.records.record_types import Header, Message, headers_of

SENT_AGAIN_FROM = "headway.sent-again.from"

# The headers of the dead letters that Kafka writes for a share group (KIP-1191). All values are text.
_OF_SHARE_GROUPS = "__dlq.errors."
LETTER_PREFIXES = (PREFIX, _OF_SHARE_GROUPS)
"""The beginnings of the names of the headers that describe a failure."""


class LetterPosition(NamedTuple):
    """The position of a letter in its topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class LetterFailure(NamedTuple):
    """How a record failed, according to the headers of its dead letter. Times are in ms since the epoch.

    `shortened` is the size of the record if its dead letter holds only the beginning of it. `group` is the group in
    which the record failed. If `of_share_group` is True, this is a share group.
    """

    exception: str | None
    message: str | None
    reason: str | None
    attempts: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: int | None
    first_time: int | None
    last_time: int | None
    shortened: str | None = None
    group: str | None = None
    first_exception: str | None = None
    first_message: str | None = None
    of_share_group: bool = False

    @classmethod
    def of(cls, headers: Sequence[Header]) -> Self | None:
        """Parse the failure from a record's headers. Returns None if the record is not a dead letter."""
        ours = _headers_with(headers, PREFIX)
        fields = ours or _headers_with(headers, _OF_SHARE_GROUPS)
        if not fields:
            return None
        return cls(
            exception=fields.get("exception"),
            message=fields.get("message"),
            reason=fields.get("reason"),
            attempts=_number(fields.get("attempts", fields.get("delivery.count"))),
            topic=fields.get("topic"),
            partition=_number(fields.get("partition")),
            offset=_number(fields.get("offset")),
            timestamp=_number(fields.get("timestamp")),
            first_time=_number(fields.get("first.time")),
            last_time=_number(fields.get("last.time")),
            shortened=fields.get("shortened"),
            group=fields.get("group"),
            first_exception=fields.get("first.exception"),
            first_message=fields.get("first.message"),
            of_share_group=not ours,
        )


class Letter(NamedTuple):
    """A record of a dead-letter topic. A record without a `failure` is not a dead letter."""

    place: LetterPosition
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    failure: LetterFailure | None
    settled: bool

    @classmethod
    def of(cls, message: Message, *, settled: bool) -> Self:
        """Create the letter from a fetched record."""
        place = LetterPosition(message.partition() or 0, message.offset() or 0)
        headers = headers_of(message)
        failure = LetterFailure.of(headers)
        return cls(place, message.timestamp()[1], message.key(), message.value(), headers, failure, settled)

    @property
    def when(self) -> int:
        """The time at which the record failed permanently, or the timestamp of a record that is not a dead letter."""
        return self.timestamp if self.failure is None or self.failure.last_time is None else self.failure.last_time

    @property
    def is_empty(self) -> bool:
        """True if the letter is from a share group and has only headers, which is the default in Kafka."""
        return self.failure is not None and self.failure.of_share_group and self.key is self.value is None

    def headers_to_send(self, topic: str, target: str) -> list[Header]:
        """Return the record's own headers, and headers for its origin and for its dead letter's place in `topic`."""
        prefixes = (*LETTER_PREFIXES, SENT_AGAIN_FROM, HEADER, EXPIRES)
        own = [(name, value) for name, value in self.headers if not name.startswith(prefixes)]
        place = Origin(topic, *self.place)
        return [*own, (SENT_AGAIN_FROM, str(place).encode()), History(target, self.origin(topic) or place).header()]

    def origin(self, topic: str) -> Origin | None:
        """Return where the record in `topic` was first sent, or if it has no history, where it failed."""
        if history := history_of(self.headers, topic):
            return history.origin
        failure = self.failure
        if failure is None or failure.topic is None:
            return None
        if history := history_of(self.headers, failure.topic):  # the letter was copied from another topic
            return history.origin
        if failure.partition is None or failure.offset is None:
            return None
        return Origin(failure.topic, failure.partition, failure.offset)


class Filter(NamedTuple):
    """The filter options of a command. A value of None matches all letters."""

    exception: str | None = None
    source_topic: str | None = None
    since: int | None = None
    until: int | None = None
    where: Selector | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in self)

    def matches(self, letter: Letter) -> bool:
        """Return whether a letter matches the filter."""
        exception, topic = (letter.failure.exception, letter.failure.topic) if letter.failure else (None, None)
        return (
            (self.exception is None or _is_named(exception, self.exception))
            and (self.source_topic is None or _is_of_topic(topic, self.source_topic))
            and (self.since is None or letter.when >= self.since)
            and (self.until is None or letter.when < self.until)
            and (self.where is None or self.where.matches(_LetterFields(letter).value_of))
        )


class _LetterFields:
    """The fields of a letter that selectors compare: those of the record that failed, and its error."""

    def __init__(self, letter: Letter) -> None:
        self._letter = letter

    def value_of(self, field: str) -> FieldValue:
        letter, failure = self._letter, self._letter.failure
        if field == "key":
            return letter.key
        if field == "age":
            return max(0.0, time.time() - letter.when / 1000)
        if field.startswith(HEADER_FIELD):
            name = field.removeprefix(HEADER_FIELD)
            value = next((value for header, value in letter.headers if header == name), None)
            return value.encode() if isinstance(value, str) else value
        return None if failure is None else _of_failure(failure, field)


def _of_failure(failure: LetterFailure, field: str) -> FieldValue:
    if field == "error":
        return None if failure.exception is None else failure.exception.rpartition(".")[2]
    if field in ("topic", "partition", "offset", "attempts"):
        value: str | int | None = getattr(failure, field)
        return value
    return None


def _headers_with(headers: Sequence[Header], beginning: str) -> dict[str, str | None]:
    return {name.removeprefix(beginning): _text(value) for name, value in headers if name.startswith(beginning)}


def _is_named(exception: str | None, name: str) -> bool:
    """Return whether the exception has this name, with or without its module: `builtins.ValueError`, `ValueError`."""
    return exception is not None and (exception == name or exception.endswith(f".{name}"))


def _is_of_topic(kafka_topic: str | None, topic: str) -> bool:
    """Return whether the Kafka topic is the topic itself, or a level of it."""
    if kafka_topic is None:
        return False
    name, _, level = kafka_topic.rpartition("-")
    return kafka_topic == topic or (name == topic and level.isdecimal())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and is_whole_number(text) else None


def is_whole_number(text: str) -> bool:
    """Return whether the text is a number that Kafka can use as a partition or an offset."""
    # Kafka's numbers have 63 bits. Python can raise an error for text with far more digits than that.
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 2**63
