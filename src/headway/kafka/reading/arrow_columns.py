"""Makes Arrow columns of records that were read from Kafka."""

from collections.abc import Sequence
from operator import itemgetter
from typing import cast

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import Message

from headway.kafka.binding.columns import FieldBuffers, RecordRun
from headway.kafka.binding.messages import FetchedMessage
from headway.records.record_types import ConsumerRecord, headers_of, messages_of

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""The type of the column `headers`."""

BATCH = pa.schema(
    [
        # 64-bit offsets, because the values of many records can have more than 2 GB.
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("topic", pa.string()),
        ("level", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)
"""The columns of a batch of consumed records, without the column `headers`."""

_NAMES = ["key", "value", "offset", "timestamp", "timestampType"]


def columns_of(found: Sequence[Message] | RecordRun, *, headers: bool = False) -> pa.RecordBatch:
    """Return the columns of records of one partition, whether they were read as messages or as buffers.

    The columns are `key`, `value`, `offset`, `timestamp` and `timestampType`. Timestamps are milliseconds since the
    epoch, as 64-bit integers, because Kafka's timestamps can be outside of the range of Spark and Python. With
    `headers`, there is a further column `headers`, which needs the messages. It is null for a record without headers.
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


def batch_of(records: Sequence[ConsumerRecord], *, headers: bool) -> pa.RecordBatch:
    """Return consumed records, with their raw keys and values, as a batch with the columns of `BATCH`.

    With `headers`, there is a further column `headers`, which is null for a record without headers. A record without a
    timestamp has null.
    """
    messages = cast("list[Message]", messages_of(records))  # a consumer's records have messages of the binding
    stamps = [stamp if kind else None for kind, stamp in map(FetchedMessage.timestamp, messages)]
    arrays = [
        pa.array(map(FetchedMessage.key, messages), pa.large_binary()),
        pa.array(map(FetchedMessage.value, messages), pa.large_binary()),
        *_topics_and_levels(records, messages),
        pa.array(map(FetchedMessage.partition, messages), pa.int32()),
        pa.array(map(FetchedMessage.offset, messages), pa.int64()),
        pa.array(stamps, pa.int64()).cast(BATCH.field("timestamp").type),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(arrays, schema=BATCH)
    arrays.append(pa.array(map(_header_list, messages), HEADERS))
    return pa.RecordBatch.from_arrays(arrays, schema=BATCH.append(pa.field("headers", HEADERS)))


def _topics_and_levels(records: Sequence[ConsumerRecord], messages: Sequence[Message]) -> tuple[pa.Array, pa.Array]:
    """Return the columns `topic` and `level`, which are computed once for each Kafka topic."""
    names = list(map(FetchedMessage.topic, messages))
    one_of_each = dict(zip(names, records, strict=True))
    topics = pa.array([record.topic for record in one_of_each.values()], pa.string())
    levels = pa.array([record.level for record in one_of_each.values()], pa.int32())
    index_of = {name: index for index, name in enumerate(one_of_each)}
    indices = pa.array(map(index_of.__getitem__, names), pa.int32())
    return topics.take(indices), levels.take(indices)


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
