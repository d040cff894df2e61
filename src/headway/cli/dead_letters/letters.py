"""Dead letters: parses their headers, filters them, and formats them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import click

from headway.cli.display.json_lines import to_json
from headway.cli.display.texts import local_time, printable, shortened, shown_bytes
from headway.cli.records.record_lines import text_or_base64
from headway.dead_letters import PREFIX
from headway.records.expiry import HEADER as EXPIRES
from headway.records.history import HEADER, History, Origin, history_of
from headway.records.record_types import Header, Message, headers_of

SENT_AGAIN_FROM = "headway.sent-again.from"

# The headers of the dead letters that Kafka writes for a share group (KIP-1191). All values are text.
_OF_SHARE_GROUPS = "__dlq.errors."
_LETTER_PREFIXES = (PREFIX, _OF_SHARE_GROUPS)

_MOST_OF_A_MESSAGE = 60
_MOST_OF_A_KEY = 30
_BYTES_OF_A_LINE = 32


class LetterPosition(NamedTuple):
    """The position of a letter in its topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class PlaceType(click.ParamType[LetterPosition]):
    """Parses a position from text such as `0:12`, as `headway dead list` shows it."""

    name = "PARTITION:OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LetterPosition:
        partition, _, offset = str(value).partition(":")
        if not (_is_number(partition) and _is_number(offset)):
            self.fail(f"{value!r} is not PARTITION:OFFSET, such as 0:12. `headway dead list` shows them.", param, ctx)
        return LetterPosition(int(partition), int(offset))


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
        prefixes = (*_LETTER_PREFIXES, SENT_AGAIN_FROM, HEADER, EXPIRES)
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
        )


def letter_row(letter: Letter) -> list[str]:
    """Format a letter as a row of a table: place, when, from, attempts, exception, message and key."""
    failure, when = letter.failure, local_time(letter.when, zone=False)
    key = shortened(shown_bytes(letter.key), _MOST_OF_A_KEY)
    if failure is None:
        return [str(letter.place), when, "-", "-", "not a dead letter", "", key]
    attempts = "-" if failure.attempts is None else str(failure.attempts)
    message = shortened(printable(failure.message or ""), _MOST_OF_A_MESSAGE)
    exception = printable(failure.exception or "-").removeprefix("builtins.")
    return [str(letter.place), when, _source(failure), attempts, exception, message, key]


def letter_json(topic: str, letter: Letter) -> str:
    """Format a letter as one line of JSON. Content that is not UTF-8 is in Base64, as `value_base64`."""
    return to_json(
        {
            "topic": topic,
            **letter.place._asdict(),
            "timestamp": letter.timestamp,
            "settled": letter.settled,
            "failure": letter.failure and letter.failure._asdict(),
            **text_or_base64("key", letter.key),
            **text_or_base64("value", letter.value),
            "headers": [{"name": name, **text_or_base64("value", value)} for name, value in letter.headers],
        }
    )


def letter_page(topic: str, letter: Letter) -> list[str]:
    """Format a letter as several lines for people."""
    state = "is settled" if letter.settled else "is open"
    what = state if letter.failure else "is not a dead letter: it has no headway.error headers"
    lines = [f"{topic} {letter.place} {what}."]
    origin = letter.origin(topic)
    first_sent = {"origin": printable(str(origin))} if letter.failure and origin else {}
    lines += _fields(_story(letter.failure) | first_sent | _times(letter) | {"key": shown_bytes(letter.key)})
    prefixes = (*_LETTER_PREFIXES, HEADER)
    own = [(printable(name), shown_bytes(value)) for name, value in letter.headers if not name.startswith(prefixes)]
    if own:
        lines += ["headers", *(f"  {name}: {value}" for name, value in own)]
    return [*lines, *_value(letter.value)]


def _story(failure: LetterFailure | None) -> dict[str, str]:
    if failure is None:
        return {}
    times = {"first failed": failure.first_time, "last failed": failure.last_time}
    story = {
        "exception": failure.exception,
        "message": failure.message,
        "reason": failure.reason,
        "attempts": failure.attempts,
        "first exception": failure.first_exception,
        "first message": failure.first_message,
        "from": _source(failure),
        "share group" if failure.of_share_group else "group": failure.group,
        "shortened": failure.shortened,
        **{name: time if time is None else local_time(time) for name, time in times.items()},
    }
    return {name: printable(str(text), "\n") for name, text in story.items() if text is not None}


def _times(letter: Letter) -> dict[str, str]:
    """Return the timestamps of the record and of its dead letter."""
    if letter.failure is None:
        return {"timestamp": local_time(letter.timestamp)}
    own = letter.failure.timestamp
    return {"timestamp": "-" if own is None else local_time(own), "written here": local_time(letter.timestamp)}


def _fields(fields: dict[str, str]) -> list[str]:
    width = max(map(len, fields))
    indent = "\n" + " " * (width + 4)
    return [f"  {name:{width}}  {indent.join(text.splitlines())}" for name, text in fields.items()]


def _value(value: bytes | None) -> list[str]:
    if value is None:
        return ["no value"]
    title = f"value, {len(value):,} byte{'' if len(value) == 1 else 's'}"
    try:
        return [title, *printable(value.decode(), "\n\t").split("\n")]
    except UnicodeDecodeError:
        parts = (value[start : start + _BYTES_OF_A_LINE] for start in range(0, len(value), _BYTES_OF_A_LINE))
        return [f"{title}, in hex, because it is not UTF-8", *(part.hex(" ") for part in parts)]


def _source(failure: LetterFailure) -> str:
    if failure.topic is None:
        return "-"
    partition, offset = ("?" if each is None else each for each in (failure.partition, failure.offset))
    return f"{printable(failure.topic)} {partition}:{offset}"


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
    return int(text) if text is not None and _is_number(text) else None


def _is_number(text: str) -> bool:
    # Kafka's numbers have 63 bits. Python can raise an error for text with far more digits than that.
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 2**63
