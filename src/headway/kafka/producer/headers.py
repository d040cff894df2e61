"""Checks the headers and the timestamp of a record before the binding gets them.

If the name of a header is not valid UTF-8, the binding crashes the process. The binding also cuts off a name at the
first NUL character, and converts a name that is not a string to text. A timestamp of 0 is treated as missing.
"""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from headway.errors import SerializationError
from headway.records.record_types import Header


def header_list(headers: Iterable[Header] | Mapping[str, str | bytes | None]) -> list[Header]:
    """Return a copy of the headers as a list, because the caller's object may be an iterator, or may be changed later.

    An object that cannot be iterated is returned unchanged, and `check_headers` will refuse it.
    """
    if isinstance(headers, Mapping):
        return list(headers.items())
    return list(headers) if isinstance(headers, Iterable) else headers


def check_headers(headers: object, topic: str) -> int:
    """Check the headers of a record, and return the total size of their names and values in bytes.

    Raises `SerializationError` unless the headers are a list of pairs of a name and a value. The value must be bytes, a
    string or None. Text must be encodable in UTF-8, and a name must not contain a NUL character. The error names the
    `topic`.
    """
    if not isinstance(headers, list):
        _refuse(topic, f"headers that are {type(headers).__name__}, not a sequence of pairs of a name and a value")
    size = 0
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 2:
            _refuse(topic, f"a header that is {type(header).__name__}, not a tuple of a name and a value")
        name, value = header
        if not isinstance(name, str):
            _refuse(topic, f"a header whose name is {type(name).__name__}, not a string")
        size += len(name) if name.isascii() else _check_text(name, f"a header named {name!r}, which", topic)
        if "\0" in name:
            _refuse(topic, f"a header named {name!r}, which Kafka's client would cut at its NUL character")
        if isinstance(value, bytes):
            size += len(value)
        elif isinstance(value, str):
            size += _check_text(value, f"a header {name!r} whose value", topic)
        elif value is not None:
            _refuse(topic, f"a header {name!r} whose value is {type(value).__name__}, not bytes, a string or None")
    return size


def check_timestamp(timestamp: int | None, topic: str) -> None:
    """Raise `SerializationError` for the timestamp 0, because librdkafka would store the current time instead."""
    if timestamp is not None and timestamp == 0:
        _refuse(
            topic,
            (
                "timestamp=0, which Kafka's client would replace by the current time; leave the timestamp out, or "
                "pass 1 or more"
            ),
        )


def _check_text(text: str, whose: str, topic: str) -> int:
    """Return the size of a text in UTF-8, in bytes. Raises `SerializationError` if it cannot be encoded."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        # The error's own text would contain the whole text of the header.
        reason = f"{error.reason} at {error.start}"
        raise SerializationError(
            f"A record for {topic} has {whose} cannot be encoded in UTF-8: {reason}. Correct it."
        ) from error


def _refuse(topic: str, what: str) -> NoReturn:
    raise SerializationError(f"A record for {topic} has {what}. Correct it.")
