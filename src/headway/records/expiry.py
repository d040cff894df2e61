"""The header that holds the time at which a record expires. After that time, the record does not have to be handled.

Invariant: any producer can write the header, so a header that does not contain a valid time counts as missing.
"""

from collections.abc import Iterable
from typing import Any

HEADER = "headway.expires"

_LONGEST = 15  # the maximum number of digits of a time; the last millisecond of the year 9999 has this many


def expiry_of(headers: Iterable[tuple[str, Any]]) -> int | None:
    """Return the time at which a record expires, in milliseconds since the epoch. Returns None if it never expires.

    If a record has several such headers, the last one counts.

    >>> expiry_of([("headway.expires", b"1763745120000")]), expiry_of([("headway.expires", b"soon")])
    (1763745120000, None)
    """
    value = None
    for name, content in headers:
        if name == HEADER:
            value = content
    if (
        not isinstance(value, bytes | str)
        or not 0 < len(value) <= _LONGEST
        or not (value.isascii() and value.isdigit())
    ):
        return None
    return int(value)


def expiry_header(at: int) -> tuple[str, bytes]:
    """Return the header that makes a record expire at the time `at`, in milliseconds since the epoch."""
    return HEADER, b"%d" % at
