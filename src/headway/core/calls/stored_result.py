"""The result of a call in the form in which it is stored: JSON with a value or an error."""

from typing import Any

import msgspec

from headway.core.untrusted import Number, Time, read_json
from headway.core.user_errors import class_name, text_of
from headway.errors import FatalError

MOST_BYTES = 1_000_000
"""The largest stored result, in bytes."""

NOTHING = msgspec.Raw(b"null")
"""The value of a failed call."""

_LONGEST_ERROR = 2000  # characters


class StoredError(msgspec.Struct, frozen=True):
    """Why a call has no result: the name of the exception's type, and its message."""

    type: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "StoredError":
        """Return the stored form of an exception. A long message is cut."""
        return cls(class_name(type(error)), text_of(error)[:_LONGEST_ERROR])


class StoredResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a call: the value that the handler returned, or the error with which the record failed for good.

    Attributes:
        ended_at: When the record was done or had failed, in milliseconds since the epoch.
        attempts: The number of the last attempt. 0 if the handler was never called.
        value: What the handler returned, as msgspec's JSON has it.
        error: The error, or None if the record was handled.
    """

    ended_at: Time
    attempts: Number
    value: msgspec.Raw = NOTHING
    error: StoredError | None = None

    def encode(self) -> bytes:
        """Return the result as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, value: bytes | None, call: str) -> "StoredResult":
        """Read a stored result. Raises `UnreadableError` if it is not valid."""
        return read_json(value, _decoder, f"The result of the call {call}", most=MOST_BYTES + _LONGEST_ERROR)


_decoder = msgspec.json.Decoder(StoredResult)


def encode_value(value: Any) -> msgspec.Raw:
    """Encode a handler's return value, which can be whatever msgspec writes as JSON, such as dataclasses and bytes.

    Raises `FatalError` if the value cannot be written as JSON or is too large, because a retry would not help.
    """
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as reason:
        raise FatalError(
            f"The handler returned {type(value).__name__}, which cannot be stored as the result of a call: {reason}. "
            "Return a value that JSON can hold: numbers, text, bytes, lists, dicts, dataclasses or None."
        ) from reason
    if len(encoded) > MOST_BYTES:
        raise FatalError(
            f"The handler returned a result of {len(encoded):,} bytes, but the result of a call can have at most "
            f"{MOST_BYTES:,}. Store it elsewhere, and return its address."
        )
    return msgspec.Raw(encoded)
