"""Dead letters as records: the headers, the size and the shortening of a record that failed for good."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from headway.core.engine.work import FailedAttempts
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
"""The senders' `message.max.bytes`, so that each topic decides by itself what it accepts.

A broker ends the connection of a client that sends a larger request than its `socket.request.max.bytes`, 100 MiB by
default, and gives no reason. This value is well below.
"""

_SHORTENED = PREFIX + "shortened"
_TEXTS = [PREFIX + name for name in ("exception", "message", "reason", "first.exception", "first.message")]
_A_HEADER = 12  # bytes that a header takes at most, besides its name and value
_LEAST_KEPT = 1000  # bytes of the key and the value together that stay, however long the headers are
_LEAST_OF_A_TEXT = 100  # bytes
_LEAST_OF_A_TOPIC = 4096  # bytes; the headers about the failure alone, with short texts, take about a quarter

R = TypeVar("R", bound=OutgoingRecord)


class FailedWork(Protocol):
    """A record that failed for good: a `Work`, or an object like one."""

    @property
    def record(self) -> ConsumerRecord: ...
    @property
    def attempt(self) -> int: ...
    @property
    def failure(self) -> FailedAttempts | None: ...


def name_and_text(error: BaseException) -> tuple[str, str]:
    """Return the name of an error's class, with its module, and the error's text, as dead letters give them.

    For a `RetryLater` these are of the error behind it, and for an earlier attempt of the error that it failed with.
    """
    error = failure_behind(error)
    if issubclass(type(error), EarlierAttemptError):
        return error.exception, error.message  # type: ignore[attr-defined]
    return kind_of(error), text_of(error)


def letter_headers(
    topic: str,
    work: FailedWork,
    error: BaseException,
    reason: str,
    *,
    group: str | None = None,
    origin: Origin | None = None,
) -> list[Header]:
    """Return the record's own headers and those about its failure, without those of an earlier dead letter.

    `topic` is that of the dead letter. In it the record keeps its origin, or gets the given one. `group` is the group
    that gave the record up.
    that gave the record up.
    """
    record, now, before = work.record, time.time(), work.failure
    first = now if before is None else now - (time.monotonic() - before.first_at)
    exception, message = name_and_text(error)
    story = {
        "exception": exception,
        "message": message,
        "reason": reason,
        "attempts": str(work.attempt - issubclass(type(error), ExpiredError)),
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
    if (expiry := expiry_of(headers)) is not None:  # the letter itself does not expire
        story["expires"] = str(expiry)
    own = [(name, value) for name, value in headers if not name.startswith(PREFIX) and name not in (HEADER, EXPIRES)]
    told = [(PREFIX + name, text.encode(errors="replace")) for name, text in story.items()]
    return [*own, *told, History(topic, origin or record.origin).header()]


def size_of(record: OutgoingRecord) -> int:
    """Return roughly how many bytes a record takes, and never fewer than it does."""
    return _size(record.value, record.key, record.headers or ())


def _size(value: bytes | None, key: bytes | None, headers: Sequence[Header]) -> int:
    fields = sum(len(name.encode()) + len(content or b"") + _A_HEADER for name, content in headers)
    return len(value or b"") + len(key or b"") + fields + 100


def fitting(letter: R, most: int) -> R:
    """Return a dead letter unchanged if it takes at most `most` bytes, or else its beginning, as `shortened` does."""
    return letter if size_of(letter) <= most else shortened(letter, most)


def shortened(letter: R, most: int) -> R:
    """Return the beginning of a dead letter: about `most` bytes in all, with the headers about its failure.

    The record's own headers are left out. A header gives the full sizes.
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
    """Return about the first half of a dead letter that Kafka refuses for its size; None if nothing more can go.

    The size that a topic accepts cannot be known in advance: the limit is the brokers', and counts compressed bytes.
    """
    size = size_of(letter)
    shorter = shortened(letter, size // 2)
    return shorter if size_of(shorter) < size else None


def why_not_kept(topic: str, settings: Mapping[str, str]) -> str | None:
    """Return a sentence that says why a topic with these settings cannot keep dead letters; None if it can.

    >>> why_not_kept("dead", {"cleanup.policy": "delete", "max.message.bytes": "1048588"})
    """
    policy = settings.get("cleanup.policy", "")
    if "compact" in policy:
        return (
            f"The topic {topic} has cleanup.policy={policy}, so it refuses records without a key, and keeps only the "
            "last dead letter of each key. Set its cleanup.policy to delete."
        )
    most = settings.get("max.message.bytes", "")
    if most.isdecimal() and int(most) < _LEAST_OF_A_TOPIC:
        return (
            f"The topic {topic} has max.message.bytes={most}, but the headers of a dead letter alone can take more. "
            f"Set it to {_LEAST_OF_A_TOPIC} or more."
        )
    return None
