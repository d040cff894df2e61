"""Makes text from records and commits safe and short enough to display."""

from datetime import UTC, datetime


def printable(text: str, also: str = "") -> str:
    r"""Escape all characters that are not printable and not in `also`, such as those that move a terminal's cursor.

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
    """Format milliseconds since the epoch as local time, or as a plain number if the calendar has no such date."""
    try:
        local = datetime.fromtimestamp(milliseconds // 1000, UTC).astimezone()
        return local.strftime("%Y-%m-%d %H:%M:%S %z" if zone else "%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds:,} ms"
