"""Conversion of a user's due time into milliseconds since the epoch."""

import math
from datetime import datetime, timedelta

from headway.core.untrusted import LATEST
from headway.errors import ConfigError

When = datetime | timedelta | float


def due_at(when: When, now: float) -> int:
    """Return the time in whole milliseconds, rounded up; a delay counts from `now`, in seconds since the epoch.

    >>> from datetime import UTC
    >>> due_at(1.5, 100.0), due_at(timedelta(minutes=1), 100.0), due_at(datetime(1970, 1, 1, 1, tzinfo=UTC), 100.0)
    (101500, 160000, 3600000)

    Raises `ConfigError` for a naive datetime, and for a value that is no time.
    """
    seconds = now + when if isinstance(when, (float, int)) else _seconds(when, now)
    if isinstance(when, bool) or not seconds * 1000 <= LATEST:  # NaN fails this comparison, too
        raise ConfigError(f"The time {when!r} is none, or beyond the year 9999. Give seconds, or a time.")
    return math.ceil(seconds * 1000) if seconds > 0 else 0


def _seconds(when: object, now: float) -> float:
    if isinstance(when, timedelta):
        return now + when.total_seconds()
    if not isinstance(when, datetime):
        raise ConfigError(f"The time {when!r} is none. Give seconds, a timedelta, or a datetime with a time zone.")
    if when.utcoffset() is None:
        raise ConfigError(
            f"The time {when} has no time zone, so it could be any of 24 hours. Give it one: "
            "datetime(..., tzinfo=ZoneInfo('Europe/Berlin')), or datetime.now(UTC) + timedelta(...)."
        )
    return when.timestamp()
