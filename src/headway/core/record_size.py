"""Computes the size of a record in memory, for all memory budgets.

A record takes the bytes of its value, its key, and the names and values of its headers. The objects that hold these
bytes in Python, in the binding and in librdkafka take additional memory, which the constants below estimate. The name
of the topic is not counted, because all records of a topic share it.
"""

from collections.abc import Iterable

RECORD_TAKES = 512
"""How many bytes the objects of one record take, without its headers."""

HEADER_TAKES = 160
"""How many bytes the objects of one header take: a pair, a name, a value, and the pair's slot in the list."""

Field = str | bytes | None
"""The types that librdkafka accepts for a key, a value, or the value of a header."""


def size_of(value: Field, key: Field, headers: Iterable[tuple[str, Field]] | None = ()) -> int:
    """Return how many bytes a record takes in memory.

    >>> size_of(b"value", b"key"), size_of(None, None, [("name", b"12")])
    (520, 678)
    """
    # Nearly all fields are bytes. Such fields are measured here, because calling `bytes_of` would double the time, and
    # a relay calls this function twice per record.
    size = RECORD_TAKES + (len(value) if value.__class__ is bytes else bytes_of(value))
    size += len(key) if key.__class__ is bytes else bytes_of(key)
    return size + size_of_headers(headers) if headers else size


def size_of_headers(headers: Iterable[tuple[str, Field]] | None) -> int:
    """Return how many bytes a record's headers take in memory."""
    size = 0
    for name, value in headers or ():
        size += HEADER_TAKES + (len(name) if name.isascii() else bytes_of(name))
        size += len(value) if value.__class__ is bytes else bytes_of(value)
    return size


def bytes_of(field: Field) -> int:
    """Return the number of bytes of one field. Text counts as UTF-8.

    >>> bytes_of("plain"), bytes_of("€"), bytes_of(None)
    (5, 3, 0)
    """
    if field is None:
        return 0
    if isinstance(field, str) and not field.isascii():
        return len(field.encode())
    return len(field)
