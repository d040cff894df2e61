"""Converts due times and expiry times that users give into milliseconds since the epoch."""

import math
import time
from datetime import datetime, timedelta
from typing import Any

from headway.core.untrusted import LATEST
from headway.declarations import is_number, shown
from headway.errors import ConfigError
from headway.kafka.producer.headers import header_list
from headway.records.expiry import HEADER, expiry_header

When = datetime | timedelta | float


def due_at(when: When, now: float) -> int:
    """Convert a time or a delay to whole milliseconds since the epoch, rounded up.

    A delay counts from `now`, in seconds since the epoch.

    >>> from datetime import UTC
    >>> due_at(1.5, 100.0), due_at(timedelta(minutes=1), 100.0), due_at(datetime(1970, 1, 1, 1, tzinfo=UTC), 100.0)
    (101500, 160000, 3600000)

    Raises `ConfigError` for a datetime without a time zone, and for a value that is not a time.
    """
    seconds = now + when if isinstance(when, (float, int)) else _seconds(when, now)
    if isinstance(when, bool) or not seconds * 1000 <= LATEST:  # written with `not`, so that NaN is refused too
        raise ConfigError(
            f"{when!r} is not a valid time, or is beyond the year 9999. Give a delay in seconds, or an earlier time."
        )
    return math.ceil(seconds * 1000) if seconds > 0 else 0


def lifetime(expires_after: float) -> int:
    """Convert a lifetime in seconds to whole milliseconds. Raises `ConfigError` if it is outside the allowed range."""
    if not is_number(expires_after) or not 0.001 <= expires_after <= LATEST // 1000:
        raise ConfigError(
            f"expires_after is {shown(expires_after)}; it must be a number of seconds, at least 0.001 and at most "
            f"{LATEST // 1000}."
        )
    return round(expires_after * 1000)


def with_expiry(headers: Any, expires: When, due: When | None = None, now: float | None = None) -> Any:
    """Return the headers with an expiry time added.

    An expiry in seconds counts from `now`, which by default is this machine's time. If the headers are not iterable,
    they are returned unchanged, and sending the record will raise the error. Raises `ConfigError` as `due_at` does, and
    also if the record would expire before it is due.
    """
    now = time.time() if now is None else now
    at = due_at(expires, now)
    if due is not None and at <= due_at(due, now):
        raise ConfigError(
            f"expires is {expires!r} and due is {due!r}, so the record would expire before it is due. Give a later "
            "expires. A number of seconds counts from now, in expires and in due."
        )
    fields: Any = header_list(() if headers is None else headers)
    if not isinstance(fields, list):
        return fields
    return [*(each for each in fields if each[:1] != (HEADER,)), expiry_header(at)]


def _seconds(when: object, now: float) -> float:
    if isinstance(when, timedelta):
        return now + when.total_seconds()
    if not isinstance(when, datetime):
        raise ConfigError(f"{when!r} is not a valid time. Give seconds, a timedelta, or a datetime with a time zone.")
    if when.utcoffset() is None:
        raise ConfigError(
            f"The time {when} has no time zone. Add one: datetime(..., tzinfo=ZoneInfo('Europe/Berlin')), or use "
            "datetime.now(UTC) + timedelta(...)."
        )
    return when.timestamp()
