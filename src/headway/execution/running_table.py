"""A table of running records in shared memory. If the process dies, its supervisor reads which records were running.

The process writes a row before it calls a handler, and clears the row afterwards, using plain stores to a shared
mapping. Plain stores need no system call, and the table stays readable however the process ends. The first byte of a
row is set last and cleared first, so a half-written row is not read.
"""

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from typing import Final

from headway.core.engine.suspects import RecordId, RunningAttempt
from headway.execution.jobs import RecordAttempt
from headway.records.record_types import TopicPartition

_LONGEST_TOPIC: Final = 249  # the maximum number of bytes in the name of a Kafka topic
_SOURCE = struct.Struct(f"<iB{_LONGEST_TOPIC}s")  # the fields: partition, length of the topic, topic
_ROW = struct.Struct(f"<xxxxxxxxqqII{_SOURCE.size}s")  # the fields: offset, timestamp, attempt, untried, source
_ROW_SIZE: Final = (_ROW.size + 7) // 8 * 8
_MOST_SOURCES = 10_000  # the maximum number of partitions for which the packed source is cached


class RunningTable:
    """Writes the table into the file of a descriptor. The table has `most` rows. Not thread-safe."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor = descriptor
        self.make_room(most)
        self._rows: dict[RecordAttempt, int] = {}
        self._sources: dict[TopicPartition, bytes] = {}

    def make_room(self, most: int) -> None:
        """Set the number of rows. Must be called only while no row is in use."""
        self._size = size = most * _ROW_SIZE
        os.ftruncate(self._descriptor, size)
        self._bytes = mmap.mmap(self._descriptor, size)
        self._free = list(range(0, size, _ROW_SIZE))

    def enter(self, attempt: RecordAttempt) -> None:
        """Write a row for a record that is about to run. If no row is free, do nothing."""
        if not self._free:
            return
        self._rows[attempt] = row = self._free.pop()
        record, failure = attempt.record, attempt.failure
        attempts, untried = (1, 0) if failure is None else (failure.attempts + 1, failure.untried)
        source = self._sources.get(attempt.assignment.partition) or self._add_source(attempt)
        _ROW.pack_into(self._bytes, row, attempt.offset, record.timestamp, attempts, untried, source)
        self._bytes[row] = 1

    def leave(self, attempt: RecordAttempt) -> None:
        """Clear the row of a record that is no longer running."""
        row = self._rows.pop(attempt, None)
        if row is not None:
            self._bytes[row] = 0
            self._free.append(row)

    def clear(self) -> None:
        """Clear all rows. Must be called only while no record is running."""
        for row in range(0, self._size, _ROW_SIZE):
            self._bytes[row] = 0

    def _add_source(self, attempt: RecordAttempt) -> bytes:
        if len(self._sources) >= _MOST_SOURCES:
            self._sources.clear()
        topic = attempt.record.kafka_topic.encode()
        packed = _SOURCE.pack(attempt.record.partition, len(topic), topic)
        self._sources[attempt.partition] = packed
        return packed


def make_table_file() -> int:
    """Make a nameless, empty file and return its descriptor. The file is in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headway-running", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_table(descriptor: int) -> Sequence[RunningAttempt]:
    """Return the records that were running when the writer of a table died, in the order of their offsets."""
    size = os.fstat(descriptor).st_size
    if not size:  # the writer died before it had created the table
        return []
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as table:
        return sorted(_read_row(table, row) for row in range(0, size, _ROW_SIZE) if table[row])


def _read_row(table: mmap.mmap, row: int) -> RunningAttempt:
    offset, timestamp, attempt, untried, source = _ROW.unpack_from(table, row)
    partition, length, topic = _SOURCE.unpack(source)
    return RunningAttempt(RecordId(topic[:length].decode(), partition, offset, timestamp), attempt, untried)
