"""Makes the columns of `format("headway")`: the columns of Spark's own Kafka source, and the column `level`."""

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
from headway.records.record_types import TopicPartition
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


def spark_columns(source: TopicPartition, records: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return records of one partition, as `columns_of` returns them, as the columns of this schema."""
    fixed = {"topic": source.topic, "partition": source.partition, "level": source.level}
    arrays = [
        pa.repeat(pa.scalar(fixed[each.name], each.type), len(records))
        if each.name in fixed
        else _cast(records.column(each.name), each)
        for each in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _cast(values: pa.Array, column: pa.Field) -> pa.Array:
    return _timestamps(values).cast(column.type) if column.name == "timestamp" else values.cast(column.type)


def _timestamps(milliseconds: pa.Array) -> pa.Array:
    extent = pc.min_max(milliseconds).as_py()
    if extent["min"] < EARLIEST_MS or extent["max"] > LATEST_MS:
        is_time = pc.and_(pc.greater_equal(milliseconds, EARLIEST_MS), pc.less_equal(milliseconds, LATEST_MS))
        milliseconds = pc.if_else(is_time, milliseconds, None)
    return milliseconds.cast(pa.timestamp("ms", tz="UTC"))
