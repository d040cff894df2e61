"""The columns of `format("headway")`: those of Spark's own Kafka source, and `level`."""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headway.kafka.reading.range_reader import Message
from headway.records import TopicPartition, headers_of

EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The bounds of the years 1 to 9999, as in Spark and Python. In the column `timestamp` other times are null."""

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def schema(include_headers: bool) -> StructType:
    """Return the columns; `topic` is the topic that was subscribed to, for records of every level."""
    columns = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if include_headers:
        columns = columns.add("headers", ArrayType(_HEADER))
    return columns.add("level", IntegerType())


def record_batch(messages: Sequence[Message], partition: TopicPartition, columns: pa.Schema) -> pa.RecordBatch:
    """Return the records of one partition as Arrow columns of the given schema."""
    # Each column is a `map` over a method of the message: no Python code runs for a record.
    stamps = list(map(Message.timestamp, messages))
    arrays = {
        "key": pa.array(map(Message.key, messages), pa.binary()),
        "value": pa.array(map(Message.value, messages), pa.binary()),
        "topic": pa.repeat(pa.scalar(partition.topic), len(messages)),
        "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), len(messages)),
        "offset": _offsets(messages),
        "timestamp": _timestamps(list(map(itemgetter(1), stamps)), columns.field("timestamp").type),
        "timestampType": _timestamp_types(stamps),
        "level": pa.repeat(pa.scalar(partition.level, pa.int32()), len(messages)),
    }
    if "headers" in columns.names:
        arrays["headers"] = _headers(messages, columns.field("headers").type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)


def _timestamps(stamps: list[int], type: pa.DataType) -> pa.Array:
    milliseconds = pa.array(stamps, pa.int64())
    extent = pc.min_max(milliseconds).as_py()
    if extent["min"] < EARLIEST_MS or extent["max"] > LATEST_MS:
        is_time = pc.and_(pc.greater_equal(milliseconds, EARLIEST_MS), pc.less_equal(milliseconds, LATEST_MS))
        milliseconds = pc.if_else(is_time, milliseconds, None)
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(type)


def _offsets(messages: Sequence[Message]) -> pa.Array:
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    if last - first == len(messages) - 1:  # no gaps by compaction or transactions: a hundredth of the time
        return pa.array(np.arange(first, last + 1))
    return pa.array(map(Message.offset, messages), pa.int64())


def _timestamp_types(stamps: Sequence[tuple[int, int]]) -> pa.Array:
    # Kafka's own numbers are -1 for none, 0 for the creation's and 1 for the log's; librdkafka's are one more.
    kinds = set(map(itemgetter(0), stamps))
    if len(kinds) == 1:  # nearly always: a topic's timestamps are of one kind
        return pa.repeat(pa.scalar(kinds.pop() - 1, pa.int32()), len(stamps))
    return pa.array([kind - 1 for kind, _ in stamps], pa.int32())


def _headers(messages: Sequence[Message], type: pa.DataType) -> pa.Array:
    """Return the column of headers: null for a record without any, as in Spark's Kafka source."""
    return pa.array([_header_list(message) for message in messages], type)


def _header_list(message: Message) -> list[dict[str, str | bytes | None]] | None:
    headers = headers_of(message)
    return [{"key": key, "value": value} for key, value in headers] if headers else None
