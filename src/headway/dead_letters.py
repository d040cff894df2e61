"""Dead letters: the headers that describe a failure, and the shortening of dead letters too large for their topic."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from headway.core.engine.attempt import FailedAttempts
from headway.core.outgoing_record import OutgoingRecord
from headway.core.retry import failure_behind
from headway.core.user_errors import kind_of, text_of
from headway.errors import EarlierAttemptError, ExpiredError
from headway.records.expiry import HEADER as EXPIRES
from headway.records.expiry import expiry_of
from headway.records.history import HEADER, History, Origin
from headway.records.record_types import ConsumerRecord, Header

PREFIX = "headway.error."
MOST_BYTES = 67_108_864
"""The `message.max.bytes` of clients that send dead letters.

This limit is large, so that only the topic's own limit applies.

The limit is well below the broker's `socket.request.max.bytes` (100 MiB by default), because a broker that receives a
larger request closes the connection without giving a reason.
"""

_SHORTENED = PREFIX + "shortened"
_TEXTS = [PREFIX + name for name in ("exception", "message", "reason", "first.exception", "first.message")]
_A_HEADER = 12  # upper bound for the bytes of a header that encode neither its name nor its value
# At least this many bytes of the key and value together are kept, even if the headers are long.
_LEAST_KEPT = 1000
_LEAST_OF_A_TEXT = 100  # at least this many bytes are kept of each error text in the headers
# The smallest max.message.bytes that a dead-letter topic can have. The headers about a failure take about a quarter of
# this size.
_LEAST_OF_A_TOPIC = 4096

R = TypeVar("R", bound=OutgoingRecord)


class LastAttempt(Protocol):
    """The last attempt at a record that failed permanently: an `Attempt`, or an object with the same properties."""

    @property
    def record(self) -> ConsumerRecord: ...
    @property
    def number(self) -> int: ...
    @property
    def failure(self) -> FailedAttempts | None: ...


def name_and_text(error: BaseException) -> tuple[str, str]:
    """Return the qualified name of an error's class and the error's text, as dead letters store them.

    For a `RetryLater`, the name and the text are those of the error that caused the `RetryLater`. For an
    `EarlierAttemptError`, they are those of the earlier attempt's error.
    """
    error = failure_behind(error)
    if issubclass(type(error), EarlierAttemptError):
        return error.exception, error.message  # type: ignore[attr-defined]
    return kind_of(error), text_of(error)


def letter_headers(
    topic: str,
    attempt: LastAttempt,
    error: BaseException,
    reason: str,
    *,
    group: str | None = None,
    origin: Origin | None = None,
) -> list[Header]:
    """Return the headers of a dead letter: the record's own headers, and the headers that describe its failure.

    If the record was itself a dead letter, the headers about that earlier failure are left out. `topic` is the
    dead-letter topic, and `group` is the consumer group that gave up on the record. If `origin` is None, the record's
    own origin is used.
    """
    record, now, before = attempt.record, time.time(), attempt.failure
    first = now if before is None else now - (time.monotonic() - before.first_at)
    exception, message = name_and_text(error)
    story = {
        "exception": exception,
        "message": message,
        "reason": reason,
        "attempts": str(attempt.number - issubclass(type(error), ExpiredError)),
        "topic": record.kafka_topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "first.time": str(round(first * 1000)),
        "last.time": str(round(now * 1000)),
    }
    if group is not None:
        story["group"] = group
    if before is not None:
        story["first.exception"], story["first.message"] = name_and_text(before.first_error)
    headers = record.headers
    if (expiry := expiry_of(headers)) is not None:  # kept only for information: the dead letter itself does not expire
        story["expires"] = str(expiry)
    own = [(name, value) for name, value in headers if not name.startswith(PREFIX) and name not in (HEADER, EXPIRES)]
    described = [(PREFIX + name, text.encode(errors="replace")) for name, text in story.items()]
    return [*own, *described, History(topic, origin or record.origin).header()]


def size_in_request(record: OutgoingRecord) -> int:
    """Return an upper bound for the number of bytes that a record takes in a produce request."""
    return _size(record.value, record.key, record.headers or ())


def _size(value: bytes | None, key: bytes | None, headers: Sequence[Header]) -> int:
    fields = sum(len(name.encode()) + len(content or b"") + _A_HEADER for name, content in headers)
    return len(value or b"") + len(key or b"") + fields + 100


def fitting(letter: R, most: int) -> R:
    """Return a dead letter unchanged if its size is at most `most` bytes, and otherwise a shortened copy."""
    return letter if size_in_request(letter) <= most else shortened_record(letter, most)


def shortened_record(letter: R, most: int) -> R:
    """Return a copy of a dead letter, truncated to about `most` bytes.

    The headers about the failure are kept, and the record's own headers are left out. An additional header gives the
    original sizes.
    """
    headers = letter.headers or []
    story = {name: content for name, content in headers if name.startswith(PREFIX) or name == HEADER}
    if _size(None, None, list(story.items())) + _LEAST_KEPT > most:
        text = max(_LEAST_OF_A_TEXT, most // 16)
        story |= {name: story[name][:text] for name in _TEXTS if story.get(name)}  # type: ignore[index]
    own = len(headers) - len(story)
    was = f"value {len(letter.value or b'')} bytes, key {len(letter.key or b'')} bytes, {own} headers"
    story.setdefault(_SHORTENED, was.encode())
    left = max(_LEAST_KEPT, most - _size(None, None, list(story.items())))
    key = None if letter.key is None else letter.key[: left // 4]
    value = None if letter.value is None else letter.value[: left - len(key or b"")]
    return msgspec.structs.replace(letter, value=value, key=key, headers=list(story.items()))


def halved(letter: R) -> R | None:
    """Return a shortened copy, of about half the size, of a dead letter that Kafka refused as too large.

    Returns None if the copy would not be smaller.

    The size that a topic accepts cannot be known in advance, because the brokers count compressed bytes.
    """
    size = size_in_request(letter)
    shorter = shortened_record(letter, size // 2)
    return shorter if size_in_request(shorter) < size else None


def why_not_kept(topic: str, settings: Mapping[str, str]) -> str | None:
    """Return a sentence that says why a topic with these settings cannot keep dead letters.

    Returns None if the topic can keep dead letters.

    >>> why_not_kept("dead", {"cleanup.policy": "delete", "max.message.bytes": "1048588"})
    """
    policy = settings.get("cleanup.policy", "")
    if "compact" in policy:
        return (
            f"The topic {topic} has cleanup.policy={policy}, so it refuses records without a key and keeps only the "
            "last dead letter for each key. Set its cleanup.policy to delete."
        )
    most = settings.get("max.message.bytes", "")
    if most.isdecimal() and int(most) < _LEAST_OF_A_TOPIC:
        return (
            f"The topic {topic} has max.message.bytes={most}, but the headers of a dead letter alone can be larger. "
            f"Set max.message.bytes to {_LEAST_OF_A_TOPIC} or more."
        )
    return None
