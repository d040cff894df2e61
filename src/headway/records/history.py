"""The history of a record, which is kept in one of its headers: its origin, and the earlier attempts to handle it.

When Headway sends a failed record to its own topic again after `RetryLater`, to the dead-letter topic, or from there
back to its topic, Kafka stores a new record each time. The header lets handlers recognise that all these records are
the same record.

The header names the topic for which it is valid, and is ignored in every other topic. So if an application copies the
headers of a record to a record of another topic, the second record counts as new, with its own origin and no earlier
attempts.

Invariants: any producer can write such a header. Whatever the header contains, reading it raises no error, and the
values that are read are limited in size. A header that cannot be read counts as missing.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

HEADER = "headway.history"

# The maximum size of a header. This is more than a header takes if all texts have their maximum length and each
# character takes six bytes, as control characters do.
_MOST_BYTES = 16_384
_LONGEST_NAME = 250  # the maximum length of an exception's class name, in characters
_LONGEST_MESSAGE = 1_000  # the maximum length of an exception's message, in characters

_LATEST = 253_402_300_799_000  # the last second of the year 9999, in milliseconds
_MOST_ATTEMPTS = 1_000_000  # bounded, because the user's own back-off function may compute with the number of attempts

_Attempts = Annotated[int, msgspec.Meta(ge=0, le=_MOST_ATTEMPTS)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=_LATEST)]
_Name = Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)]
_ErrorText = Annotated[str, msgspec.Meta(max_length=_LONGEST_MESSAGE)]

_is_topic = re.compile(r"[A-Za-z0-9._-]{1,249}").fullmatch


class Origin(NamedTuple):
    """The place where a record was first stored: a Kafka topic, a partition and an offset.

    >>> print(Origin("orders", 0, 17))
    orders-0-17
    """

    topic: str
    partition: _Number
    offset: _Offset

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


class ToldError(msgspec.Struct, frozen=True, gc=False):
    """The error of an earlier attempt: the exception's class name and message, and its time in ms since the epoch."""

    exception: _Name
    message: _ErrorText
    at: _Time


class History(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The history of a record in the Kafka topic `topic`.

    `attempts` is the number of failed attempts. `untried` is how many of these attempts do not count towards the limit
    of attempts. If `attempts` is not 0, `first` and `last` describe the first and the last error. `since` is the
    timestamp that the record had when it was first sent. Each group that reads the topic makes its own attempts, so
    `group` names the group that made these attempts; None stands for any group.
    """

    topic: str
    origin: Origin
    attempts: _Attempts = 0
    untried: _Attempts = 0
    first: ToldError | None = None
    last: ToldError | None = None
    since: _Time | None = None
    group: _Name | None = None

    def header(self) -> tuple[str, bytes]:
        """Return the header that holds this history."""
        return HEADER, _encode(self)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(History).decode


def history_of(headers: Iterable[tuple[str, Any]], topic: str) -> History | None:
    """Return the history in a record's headers, or None if the headers have no valid history for this Kafka topic.

    If a record has several such headers, the last one counts.
    """
    value = None
    for name, content in headers:
        if name == HEADER:
            value = content
    return None if value is None else _read(value, topic)


def _read(value: Any, topic: str) -> History | None:
    if not isinstance(value, bytes | str) or len(value) > _MOST_BYTES:
        return None
    try:
        history = _decode(value)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None
    if history.topic != topic or not _is_topic(history.origin.topic) or history.untried > history.attempts:
        return None
    has_errors = history.first is not None and history.last is not None
    return history if has_errors or not history.attempts else None


def told(exception: str, message: str, at: float) -> ToldError:
    """Build the description of an error for a history. Texts are cut to the lengths that readers of a header accept.

    `at` is the time of the error, in seconds since the epoch.
    """
    return ToldError(_plain(exception, _LONGEST_NAME), _plain(message, _LONGEST_MESSAGE), _time(round(at * 1000)))


def _time(milliseconds: int) -> int:
    return min(max(0, milliseconds), _LATEST)


def after_attempt(
    topic: str,
    origin: Origin,
    since: int,
    attempts: int,
    untried: int,
    first: ToldError,
    last: ToldError,
    group: str | None = None,
) -> History:
    """Return the history of a record that is sent to its own topic again.

    Values that exceed their limits are reduced to the limits.
    """
    attempts = min(attempts, _MOST_ATTEMPTS)
    moment = _time(since) if since > 0 else None
    whose = None if group is None else _plain(group, _LONGEST_NAME)
    return History(topic, origin, attempts, min(untried, attempts), first, last, moment, whose)


def counts_for(history: History, group: str) -> bool:
    """Return whether the attempts in a history were made by this group, or by an unknown group."""
    return history.group in (None, _plain(group, _LONGEST_NAME))


def _plain(text: str, most: int) -> str:
    return text[:most].encode(errors="replace").decode()  # replaces lone surrogates, which JSON cannot contain


def without_history(headers: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the headers except those that hold a history."""
    return [header for header in headers if header[0] != HEADER]
