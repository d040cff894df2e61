"""Reads JSON from Kafka's topics. The JSON is not trusted, because any client that may write to a topic can write it.

Invariants: no error except `UnreadableError` is raised, whatever the bytes are. The number of bytes bounds the time and
memory that reading takes, and `most` bounds the number of bytes. Every number, and every text that becomes a key or
stays in memory, has a type with bounds.
"""

from typing import Annotated, TypeVar

import msgspec

from headway.errors import UnreadableError

T = TypeVar("T")

LATEST = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds since the epoch."""

LONGEST_TEXT = 1000
"""The highest number of characters of an id, a token or a cron expression."""

Time = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]

_MOST_BYTES = 65_536
_MOST_SAID = 500  # how many characters of the decoder's error are shown; the error can quote the refused value


def read_json(
    value: str | bytes | None,
    decoder: "msgspec.json.Decoder[T]",
    whose: str,
    error: type[UnreadableError] = UnreadableError,
    most: int = _MOST_BYTES,
) -> T:
    """Decode a JSON text. Error messages begin with `whose`, a name for the text.

    Raises:
        UnreadableError: `value` is None, has more than `most` bytes, or is not JSON of the decoder's type.
    """
    if value is None:
        raise error(f"{whose} cannot be read: it has no value.")
    if len(value) > most:
        raise error(f"{whose} cannot be read: it has {len(value):,} bytes, but can have at most {most:,}.")
    try:
        return decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as reason:
        raise error(f"{whose} cannot be read: {str(reason)[:_MOST_SAID].rstrip('.')}.") from reason
