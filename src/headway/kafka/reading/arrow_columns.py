"""Makes Arrow columns of the records of one partition: `key`, `value`, `offset`, `timestamp` and `timestampType`.

Timestamps are milliseconds since the epoch, as 64-bit integers, because Kafka's can be outside of Arrow's range.
"""

from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import Message

from headway.kafka.binding.columns import FieldBuffers, RecordRun
from headway.records.record_types import headers_of

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""The type of the column `headers`."""

_NAMES = ["key", "value", "offset", "timestamp", "timestampType"]


def columns_of(found: Sequence[Message] | RecordRun, *, headers: bool = False) -> pa.RecordBatch:
    """Return the columns of records of one partition, whether they were read as messages or as buffers.

    With `headers`, there is a further column `headers`, which needs the messages. It is null for a record without
    headers.
    """
    if isinstance(found, RecordRun):
        return _of_run(found)
    stamps = list(map(Message.timestamp, found))
    arrays = [
        # Each column is a `map` over a method of the message, so that no Python code runs for each record.
        pa.array(map(Message.key, found), pa.binary()),
        pa.array(map(Message.value, found), pa.binary()),
        pa.array(map(Message.offset, found), pa.int64()),
        pa.array(map(itemgetter(1), stamps), pa.int64()),
        _kinds(stamps),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(arrays, _NAMES)
    return pa.RecordBatch.from_arrays([*arrays, pa.array(map(_header_list, found), HEADERS)], [*_NAMES, "headers"])


def _kinds(stamps: Sequence[tuple[int, int]]) -> pa.Array:
    kinds = set(map(itemgetter(0), stamps))
    # In Kafka, -1 means no timestamp, 0 creation time, and 1 log append time. librdkafka's numbers are one higher.
    if len(kinds) == 1:  # nearly always the case, because a topic's timestamps are of one kind
        return pa.repeat(pa.scalar(kinds.pop() - 1, pa.int32()), len(stamps))
    return pa.array([kind - 1 for kind, _ in stamps], pa.int32())


def _header_list(message: Message) -> list[dict[str, str | bytes | None]] | None:
    headers = headers_of(message)
    return [{"key": key, "value": value} for key, value in headers] if headers else None


def _of_run(run: RecordRun) -> pa.RecordBatch:
    arrays = [_of_field(run, run.key), _of_field(run, run.value)]
    for kind, buffer in ((pa.int64(), run.offsets), (pa.int64(), run.timestamps), (pa.int32(), run.timestamp_types)):
        arrays.append(pa.Array.from_buffers(kind, len(run), [None, pa.py_buffer(buffer)], offset=run.start))
    return pa.RecordBatch.from_arrays(arrays, _NAMES)


def _of_field(run: RecordRun, field: FieldBuffers) -> pa.Array:
    offsets, validity, data = field
    buffers = [validity and pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(run), buffers, offset=run.start)
