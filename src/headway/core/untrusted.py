"""Reads JSON from Kafka's topics. It is not trusted, because anybody with the right to write there can have written it.

Invariants: only `UnreadableError` is raised, whatever the bytes are. Time and memory are bounded by the number of
bytes, which `most` bounds. Every number, and every text that becomes a key or stays in memory, has a type with bounds.
"""

from typing import Annotated, TypeVar

import msgspec

from headway.errors import UnreadableError

T = TypeVar("T")

LATEST = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds since the epoch."""

LONGEST_TEXT = 1000
"""The most characters of an id, a token or a cron expression."""

Time = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]

_MOST_BYTES = 65_536
_MOST_SAID = 500  # characters of the decoder's error, which can quote the refused value


def read_json(
    value: str | bytes | None,
    decoder: "msgspec.json.Decoder[T]",
    whose: str,
    error: type[UnreadableError] = UnreadableError,
    most: int = _MOST_BYTES,
) -> T:
    """Return the value of a JSON text. The text of an error begins with `whose`.

    Raises:
        UnreadableError: There is no value, it has more than `most` bytes, or it is not JSON of the decoder's type.
    """
    if value is None:
        raise error(f"{whose} cannot be read: it has no value.")
    if len(value) > most:
        raise error(f"{whose} cannot be read: it has {len(value):,} bytes, but can have at most {most:,}.")
    try:
        return decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as reason:
        raise error(f"{whose} cannot be read: {str(reason)[:_MOST_SAID].rstrip('.')}.") from reason
