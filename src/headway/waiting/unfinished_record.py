"""A record that a group has not finished."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.records.record_types import Header

RecordAddress = tuple[str, int, int]
"""The Kafka topic, the partition and the offset of a record."""


@dataclass(frozen=True, slots=True)
class UnfinishedRecord:
    """A record that a group has not finished.

    Attributes:
        topic: The name of its topic in Kafka.
        level: Its level; 0 for a topic without levels.
        partition: The number of its partition.
        offset: Its offset.
        key: The bytes of its key.
        value: The bytes of its value.
        headers: Its headers.
        timestamp: Its timestamp in milliseconds since the epoch.
        attempts: How many attempts have failed, as of the group's last commit.
    """

    topic: str
    level: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None = field(repr=False)
    headers: Sequence[Header] = field(repr=False)
    timestamp: int
    attempts: int

    @property
    def place(self) -> RecordAddress:
        """The Kafka topic, the partition and the offset."""
        return self.topic, self.partition, self.offset
