"""The pause that a server asks for: the header Retry-After (RFC 9110 §10.2.3)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait from now, or None if the header is missing or is neither seconds nor a date.

    A date is compared with the answer's own Date, so that a wrong clock on either side does not matter. Without a Date,
    it is compared with `now`, in seconds since the epoch.

    >>> retry_after({"Retry-After": "120"}, now=0)
    120.0
    >>> retry_after({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, now=784111770.0)
    7.0
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    until = _seconds_of(value)
    if until is None:
        return None
    sent = _seconds_of(headers.get("Date", ""))
    return max(0.0, until - (now if sent is None else sent))


def _seconds_of(date: str) -> float | None:
    """Parse an HTTP date in any of its three forms (RFC 9110 §5.6.7) into seconds since the epoch, or return None."""
    try:
        parsed = parsedate_to_datetime(date)
        return _in_utc(parsed).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _in_utc(date: datetime) -> datetime:
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
