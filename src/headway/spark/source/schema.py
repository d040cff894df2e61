"""Makes the columns of `format("headway")`: the columns of Spark's own Kafka source, and the column `level`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
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

from headway.errors import ConfigError
from headway.kafka.reading.range_reader import Message
from headway.records.record_types import TopicPartition, headers_of
from headway.spark.session.plan_sources import planned_sources

EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999, which Spark and Python can represent. In the column
`timestamp`, any other time is null."""

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


_OWN_NAMES = "headway.topicsUnderOwnNames"  # a key in the metadata of `level`, which Spark keeps through projections


def has_level_topics(df: DataFrame) -> bool:
    """Return whether the Kafka topic of a row ends with its level, as in `orders-2`.

    The result is False if the frame was read without the option `levels`. In that case, the column `topic` has the name
    of the Kafka topic itself, and the column `level` has the topic's priority.
    """
    if "level" not in df.columns or df.schema["level"].metadata.get(_OWN_NAMES, False):
        return False
    sources = planned_sources(df)  # the metadata is lost in a cast or with `.schema(…)`
    return not sources or any("levels" in source.options for source in sources)


def schema(include_headers: bool, *, level_topics: bool = True) -> StructType:
    """Return the columns of the source. At every level, the column `topic` has the name that was subscribed to.

    If `level_topics` is False, that is noted in the metadata of the column `level`, where `has_level_topics` finds it.
    """
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
    return columns.add("level", IntegerType(), metadata=None if level_topics else {_OWN_NAMES: True})


def projection(asked: StructType, include_headers: bool) -> StructType:
    """Return the columns of `.schema(…)` after checking them.

    Raises `ConfigError` if the source does not have a column, or has it with another type.
    """
    known = {each.name: each for each in schema(include_headers=True)}
    if not asked.fields:
        raise ConfigError(
            "The schema has no columns. Name some of the source's columns, or leave out .schema(…) for all of them."
        )
    if include_headers and "headers" not in asked.fieldNames():
        raise ConfigError(
            "The option `includeHeaders` is true, but the schema has no column `headers`. Remove the option, or add "
            "the column."
        )
    for each in asked:
        if each.name not in known:
            raise ConfigError(
                f"The schema has a column `{each.name}`, but the headway source has only {', '.join(known)}."
            )
        own = known[each.name].dataType
        if each.dataType != own:
            raise ConfigError(
                f"The schema has the column `{each.name}` as {each.dataType.simpleString()}, but the headway source "
                f"reads it as {own.simpleString()}. Correct the schema, and cast the column after reading."
            )
    return asked


PartitionRun = tuple[TopicPartition, Sequence[Message]]
"""Consecutive records of one partition."""


def record_batch(runs: Sequence[PartitionRun], columns: pa.Schema) -> pa.RecordBatch:
    """Return the records of these runs, in their order, as Arrow columns of the given schema."""
    messages = runs[0][1] if len(runs) == 1 else [message for _, found in runs for message in found]
    return pa.RecordBatch.from_arrays(
        [_MAKERS[each.name](messages, runs, each.type) for each in columns], schema=columns
    )


def _of_runs(values: Iterable[str | int], runs: Sequence[PartitionRun], type: pa.DataType) -> pa.Array:
    """Return a column with one value for all records of each run."""
    indices = np.repeat(np.arange(len(runs)), [len(found) for _, found in runs])
    return pa.array(values, type).take(pa.array(indices))


def _timestamps(messages: Sequence[Message], type: pa.DataType) -> pa.Array:
    stamps = list(map(itemgetter(1), map(Message.timestamp, messages)))
    milliseconds = pa.array(stamps, pa.int64())
    extent = pc.min_max(milliseconds).as_py()
    if extent["min"] < EARLIEST_MS or extent["max"] > LATEST_MS:
        is_time = pc.and_(pc.greater_equal(milliseconds, EARLIEST_MS), pc.less_equal(milliseconds, LATEST_MS))
        milliseconds = pc.if_else(is_time, milliseconds, None)
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(type)


def _offsets(messages: Sequence[Message], runs: Sequence[PartitionRun]) -> pa.Array:
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    # If compaction and transactions have left no gaps, this shortcut takes a hundredth of the time.
    if len(runs) == 1 and last - first == len(messages) - 1:
        return pa.array(np.arange(first, last + 1))
    return pa.array(map(Message.offset, messages), pa.int64())


def _timestamp_types(messages: Sequence[Message]) -> pa.Array:
    stamps = list(map(Message.timestamp, messages))
    # In Kafka, -1 means no timestamp, 0 creation time, and 1 log append time. librdkafka's numbers are one higher.
    kinds = set(map(itemgetter(0), stamps))
    if len(kinds) == 1:  # nearly always the case, because a topic's timestamps are of one kind
        return pa.repeat(pa.scalar(kinds.pop() - 1, pa.int32()), len(stamps))
    return pa.array([kind - 1 for kind, _ in stamps], pa.int32())


def _headers(messages: Sequence[Message], type: pa.DataType) -> pa.Array:
    """Return the column of headers, which is null for records without headers, as in Spark's Kafka source."""
    return pa.array([_header_list(message) for message in messages], type)


def _header_list(message: Message) -> list[dict[str, str | bytes | None]] | None:
    headers = headers_of(message)
    return [{"key": key, "value": value} for key, value in headers] if headers else None


_Maker = Callable[[Sequence[Message], Sequence[PartitionRun], pa.DataType], pa.Array]

# Each column is a `map` over a method of the message, so that no Python code runs per record.
_MAKERS: Mapping[str, _Maker] = {
    "key": lambda messages, _, kind: pa.array(map(Message.key, messages), kind),
    "value": lambda messages, _, kind: pa.array(map(Message.value, messages), kind),
    "topic": lambda _, runs, kind: _of_runs([at.topic for at, _ in runs], runs, kind),
    "partition": lambda _, runs, kind: _of_runs([at.partition for at, _ in runs], runs, kind),
    "offset": lambda messages, runs, _: _offsets(messages, runs),
    "timestamp": lambda messages, _, kind: _timestamps(messages, kind),
    "timestampType": lambda messages, _, kind: _timestamp_types(messages),
    "headers": lambda messages, _, kind: _headers(messages, kind),
    "level": lambda _, runs, kind: _of_runs([at.level for at, _ in runs], runs, kind),
}
