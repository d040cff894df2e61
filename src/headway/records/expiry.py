"""The time at which a record expires and need not be handled any more, in a header that any producer can write.

Invariant: anybody can write the header, so a header that does not contain a time counts as missing.
"""

from collections.abc import Iterable
from typing import Any

HEADER = "headway.expires"

_LONGEST = 15  # digits; the year 9999 has as many in milliseconds


def expiry_of(headers: Iterable[tuple[str, Any]]) -> int | None:
    """Return the time at which a record expires, in milliseconds since the epoch; None if it never does.

    If there are several such headers, the last one counts.

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
    """Return the header that makes a record expire at this time, in milliseconds since the epoch."""
    return HEADER, b"%d" % at
