"""Decides where to resume reading a partition whose log does not have the next offset."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["RESETS", "LostPlace", "Reset"]


class Reset(Enum):
    """The meanings of `auto.offset.reset`: where to start if a partition has no valid offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


RESETS: Final[Mapping[str, Reset]] = {
    **dict.fromkeys(("smallest", "earliest", "beginning"), Reset.EARLIEST),
    **dict.fromkeys(("largest", "latest", "end"), Reset.LATEST),
    "error": Reset.ERROR,
}
"""The values of `auto.offset.reset` that librdkafka accepts, with their meanings."""


class LostPlace(NamedTuple):
    """The next offset to read, and the offsets that the log has: from `first` up to, but not including, `end`."""

    offset: int
    first: int
    end: int

    @property
    def is_valid(self) -> bool:
        """True if the log has the offset, or if the offset is the end of the log."""
        return self.first <= self.offset <= self.end

    @property
    def deleted(self) -> int:
        """The number of offsets that were deleted before they were read.

        >>> LostPlace(10, first=60, end=110).deleted
        50
        """
        return max(0, self.first - self.offset)

    def start(self, reset: Reset) -> int | None:
        """Return the offset to resume at, or None if `reset` requires an error.

        >>> LostPlace(10, first=60, end=110).start(Reset.LATEST)
        110
        """
        if self.is_valid:
            return self.offset
        return {Reset.EARLIEST: self.first, Reset.LATEST: self.end, Reset.ERROR: None}[reset]

    def sentence(self, topic: str, partition: int, reset: Reset) -> str:
        """Return a description, in one or more sentences, of the loss and of what happens next."""
        which = f"partition {partition} of {topic}"
        if self.deleted:
            count = f"{self.deleted} {'records' if self.deleted > 1 else 'record'}"
            what = (
                f"Up to {count} of {which} were deleted before they were read: offsets {self.offset} to "
                f"{self.first - 1}. Either the topic's retention.ms or retention.bytes is too short for its backlog, "
                "or the records were deleted by hand."
            )
        else:
            what = (
                f"The log of {which} ends at offset {self.end}, before offset {self.offset}, which should be read "
                "next: either brokers have lost records, or a commit or a seek used an offset that never existed."
            )
        start = self.start(reset)
        if start is None:
            return (
                f"{what} With auto.offset.reset=error, the partition is not read. Commit an offset from {self.first} "
                f"to {self.end}, for example with `headway offsets reset`, or set auto.offset.reset to earliest or "
                "latest."
            )
        passed_over = self.end - max(self.first, min(self.offset, self.end)) if reset is Reset.LATEST else 0
        more = f"{passed_over} more {'offsets' if passed_over > 1 else 'offset'}"
        rest = f" and skips {more}, because auto.offset.reset is {reset.value}" if passed_over else ""
        return f"{what} Reading resumes at offset {start}{rest}."
