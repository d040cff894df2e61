"""Makes text from records and commits safe and short enough to display."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def printable(text: str, also: str = "") -> str:
    r"""Escape all characters that are not printable, such as those that move a terminal's cursor, except `also`.

    >>> printable("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\\nc'
    """
    return "".join(each if each.isprintable() or each in also else repr(each)[1:-1] for each in text)


def shortened(text: str, most: int) -> str:
    """Shorten the text to at most `most` characters.

    >>> shortened("out of stock", 7)
    'out of…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def shown_bytes(content: str | bytes | None) -> str:
    r"""Format a key or header on one line: as text, in hex if it is not UTF-8, and as `-` if it is None.

    >>> shown_bytes(b"ann"), shown_bytes(b"\xff\xfe"), shown_bytes(None)
    ('ann', '0xfffe', '-')
    """
    if content is None:
        return "-"
    try:
        return printable(content if isinstance(content, str) else content.decode())
    except UnicodeDecodeError as error:
        return f"0x{error.object.hex()}"


def local_time(milliseconds: int, *, zone: bool = True) -> str:
    """Format milliseconds since the epoch as local time, or as a plain number if it is beyond the calendar."""
    try:
        local = datetime.fromtimestamp(milliseconds // 1000, UTC).astimezone()
        return local.strftime("%Y-%m-%d %H:%M:%S %z" if zone else "%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds:,} ms"


class Moment(click.ParamType[int]):
    """Parses a date, a time, or a time ago such as 90m, into milliseconds since the epoch."""

    name = "moment"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "TIME|AGO"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return int(_moment(str(value)).timestamp() * 1000)
        except (ValueError, OverflowError):
            return self.fail(
                f"{value!r} is not a time such as 2026-05-01 or '2026-05-01 12:30', or how long ago, such as 90m, 12h "
                "or 7d.",
                param,
                ctx,
            )


def _moment(text: str) -> datetime:
    unit = _UNITS.get(text[-1:])
    if unit and text[:-1].isdecimal():
        return datetime.now(UTC) - timedelta(**{unit: int(text[:-1])})
    return datetime.fromisoformat(text)  # without a zone it means local time
