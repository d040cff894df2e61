"""Text from records and commits, made safe and short enough to show."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def printable(text: str, also: str = "") -> str:
    r"""Return the text with all that could move a terminal's cursor, or worse, written out, except what is in `also`.

    >>> printable("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\\nc'
    """
    return "".join(each if each.isprintable() or each in also else repr(each)[1:-1] for each in text)


def shortened(text: str, most: int) -> str:
    """Return the text in at most so many characters.

    >>> shortened("out of stock", 7)
    'out of…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def shown_bytes(content: str | bytes | None) -> str:
    r"""Return a key or a header in one line: as text, in hex if it is not UTF-8, and as `-` if there is none.

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
    """Return milliseconds since the epoch as this machine's time; as a number if no calendar reaches so far."""
    try:
        local = datetime.fromtimestamp(milliseconds // 1000, UTC).astimezone()
        return local.strftime("%Y-%m-%d %H:%M:%S %z" if zone else "%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds:,} ms"


class Moment(click.ParamType[int]):
    """A date, a time, or a time ago, in milliseconds since the epoch."""

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
                f"{value!r} is no time, as 2026-05-01 or '2026-05-01 12:30', nor how long ago, as 90m, 12h or 7d.",
                param,
                ctx,
            )


def _moment(text: str) -> datetime:
    unit = _UNITS.get(text[-1:])
    if unit and text[:-1].isdecimal():
        return datetime.now(UTC) - timedelta(**{unit: int(text[:-1])})
    return datetime.fromisoformat(text)  # without a zone: the machine's
