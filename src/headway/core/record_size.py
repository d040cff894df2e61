"""The size of a record in memory, which all memory budgets use.

A record takes the bytes of its value, its key, and its headers with their names. Added to these are the objects that
hold them, in Python, the binding and librdkafka, at the rates below. All records of a topic share its name.
"""

from collections.abc import Iterable

RECORD_TAKES = 512
"""The bytes of a record's objects, without those of its headers."""

HEADER_TAKES = 160
"""The bytes of the objects of one header: a pair, a name, a value, and its slot in the list."""

Field = str | bytes | None
"""A key, a value or the value of a header, as librdkafka accepts it."""


def size_of(value: Field, key: Field, headers: Iterable[tuple[str, Field]] | None = ()) -> int:
    """Return the bytes that a record takes in memory.

    >>> size_of(b"value", b"key"), size_of(None, None, [("name", b"12")])
    (520, 678)
    """
    # Nearly all fields are bytes; a call for each would double the time, and a relay asks this twice a record.
    size = RECORD_TAKES + (len(value) if value.__class__ is bytes else bytes_of(value))
    size += len(key) if key.__class__ is bytes else bytes_of(key)
    return size + size_of_headers(headers) if headers else size


def size_of_headers(headers: Iterable[tuple[str, Field]] | None) -> int:
    """Return the bytes that a record's headers take in memory."""
    size = 0
    for name, value in headers or ():
        size += HEADER_TAKES + (len(name) if name.isascii() else bytes_of(name))
        size += len(value) if value.__class__ is bytes else bytes_of(value)
    return size


def bytes_of(field: Field) -> int:
    """Return the bytes of one field; text counts as UTF-8.

    >>> bytes_of("plain"), bytes_of("€"), bytes_of(None)
    (5, 3, 0)
    """
    if field is None:
        return 0
    if isinstance(field, str) and not field.isascii():
        return len(field.encode())
    return len(field)
