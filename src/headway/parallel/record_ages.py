"""The ages of records in memory: the timestamp of every 64th received record, for consumers that are measured."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from headway.records.record_types import ConsumerRecord, TopicPartition

# Reading a timestamp takes as long as the rest of receiving a record, so only one in this many is read.
_EVERY = 64


class AgeMark(NamedTuple):
    """A received record.

    `created` is its timestamp in seconds since the epoch, or None if it has none. `arrived` is in monotonic time.
    """

    offset: int
    created: float | None
    arrived: float


class RecordAges:
    """Remembers marks of the received records of each partition. The caller must hold the lock of the dispatch."""

    def __init__(self) -> None:
        self._marks: dict[TopicPartition, list[AgeMark]] = {}

    def received(self, partition: TopicPartition, records: Sequence[ConsumerRecord], now: float) -> None:
        """Add marks of received records of a partition."""
        marks = self._marks.setdefault(partition, [])
        if marks and marks[-1].offset >= records[0].offset:  # after a seek or a truncation, the offsets go back
            marks.clear()
        for record in records[::_EVERY]:
            created = record.timestamp
            marks.append(AgeMark(record.offset, created / 1000 if created > 0 else None, now))

    def of(self, partition: TopicPartition, offset: int) -> AgeMark | None:
        """Return the last mark up to this offset, or None if no record of the partition has been received since."""
        marks = self._marks.get(partition, [])
        index = bisect_right(marks, offset, key=attrgetter("offset"))
        return marks[index - 1] if index else None

    def forget(self, lowest: Mapping[TopicPartition, int], assigned: Collection[TopicPartition]) -> None:
        """Forget the marks before the one of each partition's lowest offset, and partitions that are not assigned."""
        for partition in [each for each in self._marks if each not in assigned]:
            del self._marks[partition]
        for partition, offset in lowest.items():
            if marks := self._marks.get(partition):
                del marks[: max(0, bisect_right(marks, offset, key=attrgetter("offset")) - 1)]
