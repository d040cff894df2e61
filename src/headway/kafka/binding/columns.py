"""Takes records from librdkafka as the buffers of Arrow columns, without creating an object for each record.

The records are copied by the optional C module `native_columns`. `IS_COMPILED` is False where it was not compiled.
"""

import ctypes
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Self

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.kafka.binding.librdkafka import handle_of, handle_or_none, lib, milliseconds

try:
    from headway.kafka.binding import native_columns
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True
    native_columns.bind(
        *(
            ctypes.cast(getattr(lib, f"rd_kafka_{name}"), ctypes.c_void_p).value or 0
            for name in (
                "consume_batch_queue",
                "message_destroy",
                "message_timestamp",
                "message_errstr",
                "topic_name",
            )
        )
    )


FieldBuffers = tuple[bytes, bytes | None, bytes]
"""The keys or the values of records as the buffers of an Arrow column of type `binary`.

These are the 32-bit offsets, the validity bits or None if no key or value is null, and the data.
"""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Consecutive records of one partition, as the buffers of Arrow columns.

    `offsets` and `timestamps` are 64-bit integers, and `timestamp_types` are Kafka's numbers as 32-bit integers.
    Only the records with indexes from `start` up to but not including `end` count.
    """

    topic: str
    partition: int
    end: int
    key: FieldBuffers
    value: FieldBuffers
    offsets: bytes
    timestamps: bytes
    timestamp_types: bytes
    start: int = 0

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def place(self) -> tuple[str, int]:
        """The Kafka topic and the number of the partition."""
        return self.topic, self.partition

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self._all_offsets()[self.start]

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self._all_offsets()[self.end - 1]

    def between(self, first: int, end: int) -> Self:
        """Return only the records at or after the offset `first` and before the offset `end`."""
        offsets = self._all_offsets()
        start, stop = (bisect_left(offsets, bound, self.start, self.end) for bound in (first, end))
        return replace(self, start=start, end=stop)

    def _all_offsets(self) -> "memoryview[int]":
        return memoryview(self.offsets).cast("q")


class ColumnQueue:
    """A queue of a consumer from which records are taken as Arrow columns.

    Only records, and events that belong to a partition, may be put into this queue, because other events need the
    binding's callbacks. Close the queue before the consumer.
    """

    def __init__(self, consumer: cimpl.Consumer) -> None:
        self._consumer = consumer
        self.address: int = lib.rd_kafka_queue_new(handle_of(consumer))
        """The address of librdkafka's queue, or 0 after `close`."""

    def take(self, most: int, within: float) -> list[RecordRun | ck.Message]:
        """Return at most `most` records and events in their order. Waits up to `within` seconds for all of them.

        A message in the result is an event that has an error, such as the end of a partition.
        """
        handle_of(self._consumer)  # raises an error if the consumer is closed
        return [
            _event(*item) if len(item) == _EVENT else RecordRun(*item)
            for item in native_columns.take(self.address, most, milliseconds(within))
        ]

    def close(self) -> None:
        """Release the queue, unless the consumer is closed already."""
        address, self.address = self.address, 0
        if address and handle_or_none(self._consumer) is not None:
            lib.rd_kafka_queue_destroy(address)


_EVENT = 5  # the number of fields of an event; a run of records has more


def _event(topic: str | None, partition: int, offset: int, code: int, reason: str) -> ck.Message:
    return ck.Message(topic=topic, partition=partition, offset=offset, error=ck.KafkaError(code, reason))
