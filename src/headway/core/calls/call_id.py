"""The id of a call, which says where its result will be and when the call was made.

The caller chooses the partition of the result, so it has to read only that partition of the topic. Whoever has the id
later finds the result without an index: it is in that partition, and not older than the call.
"""

import re
from typing import NamedTuple, Self

from headway.core.untrusted import LATEST
from headway.errors import ConfigError, UnreadableError

CALL_HEADER = "headway.call"
"""The header of a record whose sender wants the result: the result topic, "/", and the id of the call."""

RANDOM_BYTES = 10
_ID = re.compile(r"(0|[1-9][0-9]{0,4})-([0-9a-f]{12})([0-9a-f]{20})")


class CallId(NamedTuple):
    """The id of a call. `str()` gives the form in which it is stored and shown.

    Attributes:
        partition: The partition of the result topic in which the result will be stored.
        made_at: When the call was made, in milliseconds since the epoch.
        random: 20 hexadecimal digits.
    """

    partition: int
    made_at: int
    random: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id. Raises `ConfigError` if the text is not the id of a call."""
        found = _ID.fullmatch(text)
        if not found or int(found[2], 16) > LATEST:
            raise ConfigError(f"{text[:100]!r} is not the id of a call, such as 3-019af3c4a1b2d41e0f7c9a6b3e5d0a1b.")
        return cls(int(found[1]), int(found[2], 16), found[3])

    def __str__(self) -> str:
        return f"{self.partition}-{self.made_at:012x}{self.random}"

    def header(self, topic: str) -> tuple[str, bytes]:
        """Return the header with which a record asks for its result in this topic."""
        return CALL_HEADER, f"{topic}/{self}".encode()


class ResultRequest(NamedTuple):
    """What a record's header asks for: a result in this topic, for this call."""

    topic: str
    call: CallId


def read_header(value: str | bytes | None) -> ResultRequest:
    """Read the header of a record whose sender wants the result. Raises `UnreadableError` if it is not valid."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value or ""
    topic, _, call = text.rpartition("/")
    try:
        return ResultRequest(topic, CallId.parse(call))
    except ConfigError as error:
        raise UnreadableError(f"The header {CALL_HEADER} cannot be read: {error}") from None
