"""Formats numbers, times and foreign bytes for people. The templates use these functions as filters.

Nothing here escapes HTML: the templates do that for every value.
"""

import math
from datetime import UTC, datetime

UNKNOWN = "–"
_LONGEST = 200
MOST_OF_A_VALUE = 100_000
"""The bytes of a value that a page shows."""


def whole(number: float | None) -> str:
    """Format a number of things.

    >>> whole(1234567), whole(None)
    ('1,234,567', '–')
    """
    return UNKNOWN if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """Format a number of things in few characters, for labels in a drawing.

    >>> short(950), short(12_345), short(2_500_000)
    ('950', '12.3k', '2.5M')
    """
    if number is None:
        return UNKNOWN
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= 10 * size or (size > 1e3 and abs(number) >= size):
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}"


def per_second(number: float | None) -> str:
    """Format a number of things per second.

    >>> per_second(0.04), per_second(3.21), per_second(1234.5), per_second(0)
    ('0.04/s', '3.2/s', '1,234/s', '0/s')
    """
    if number is None:
        return UNKNOWN
    if number == 0:
        return "0/s"
    return f"{number:.2f}/s" if number < 1 else f"{number:.1f}/s" if number < 100 else f"{number:,.0f}/s"


def time_span(seconds: float | None) -> str:
    """Format a time_span with at most two units.

    >>> time_span(0.26), time_span(42.3), time_span(252), time_span(7400), time_span(200_000), time_span(None)
    ('0.3 s', '42 s', '4 min 12 s', '2 h 3 min', '2 d 7 h', '–')
    >>> time_span(0.0042), time_span(0)
    ('4.2 ms', '0 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s" if seconds else "0 s"
    for name, size, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            large, rest = divmod(int(seconds), size)
            return f"{large:,} {name} {rest // part} {smaller}" if rest // part else f"{large:,} {name}"
    return f"{seconds:.0f} s"


def moment(time: float | None, *, now: float | None = None) -> str:
    """Format a time in the server's zone, without the date if that is today's."""
    if time is None:
        return UNKNOWN
    try:
        local = datetime.fromtimestamp(time, UTC).astimezone()
        today = (datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)).astimezone().date()
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


def machine_time(time: float | None) -> str:
    """Format a time for programs, with its zone.

    >>> machine_time(1_763_745_120)
    '2025-11-21T17:12:00Z'
    """
    try:
        return f"{datetime.fromtimestamp(time or 0, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return ""


def hour(time: float) -> str:
    """Format the hour that begins at a time."""
    return f"{datetime.fromtimestamp(time, UTC).astimezone():%a %d %b, %H:%M}"


def size(count: int | bytes | None) -> str:
    """Format a number of bytes, or the size of bytes.

    >>> size(1), size(2_500), size(3_000_000)
    ('1 byte', '2.5 kB', '3 MB')
    """
    if count is None:
        return UNKNOWN
    if isinstance(count, bytes):
        count = len(count)
    if count < 1000:
        return f"{count} byte{'' if count == 1 else 's'}"
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def clear(text: str, also: str = "") -> str:
    r"""Escape characters that are not printable, such as those that turn the direction of writing.

    >>> clear("a\u202eb\x00c")
    'a\\u202eb\\x00c'
    """
    return "".join(each if each.isprintable() or each in also else repr(each)[1:-1] for each in text)


def content(value: bytes | str | None, longest: int = _LONGEST) -> str:
    r"""Format a key or a header on one line: as text, or in hex if it is not UTF-8.

    >>> content(b"ann"), content(b"\xff\xfe"), content(None)
    ('ann', '0xfffe', '–')
    """
    if value is None:
        return UNKNOWN
    try:
        text = clear(value if isinstance(value, str) else value.decode())
    except UnicodeDecodeError as error:
        text = f"0x{error.object.hex()}"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def whole_value(value: bytes | None) -> str:
    r"""Format a record's value as text, or in hex if it is not UTF-8. Long values are cut off.

    >>> whole_value(b"a\n<b>"), whole_value(b"\xff\x00")
    ('a\n<b>', 'ff 00')
    """
    if value is None:
        return "The record has no value."
    most = value[:MOST_OF_A_VALUE]
    more = f"\n… and {len(value) - MOST_OF_A_VALUE:,} more bytes" if len(value) > MOST_OF_A_VALUE else ""
    try:
        return clear(most.decode(errors="strict" if not more else "ignore"), "\n\t") + more
    except UnicodeDecodeError:
        lines = (most[start : start + 32].hex(" ") for start in range(0, len(most), 32))
        return "\n".join(lines) + more


def short_name(exception: str) -> str:
    """Return the last part of a qualified name.

    >>> short_name("shop.errors.Declined"), module_name("shop.errors.Declined")
    ('Declined', 'shop.errors')
    """
    return exception.rpartition(".")[2]


def module_name(exception: str) -> str:
    """Return all but the last part of a qualified name. The built-in module is left out."""
    return exception.rpartition(".")[0].removeprefix("builtins")


def plural(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> plural(1, "record"), plural(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


FILTERS = {
    each.__name__: each
    for each in (
        whole,
        short,
        per_second,
        time_span,
        moment,
        machine_time,
        hour,
        size,
        clear,
        content,
        short_name,
        module_name,
        plural,
    )
}
