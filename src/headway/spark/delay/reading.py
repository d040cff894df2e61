"""Reads pending schedules from the delay topics as a DataFrame, without disturbing the relays."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's documentation uses this name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from headway.delay.pending import Pending, layout_of, read_pending
from headway.delay.topic_names import DEFAULT_NAME
from headway.spark.session.error_messages import one_sentence
from headway.spark.session.plan_names import shown_as

PENDING = (
    StructType()
    .add("handle", StringType())
    .add("id", StringType())
    .add("due", TimestampType())
    .add("scheduled", TimestampType())
    .add("topic_delay_ms", LongType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("key", BinaryType())
    .add("value", BinaryType())
)

_AT_A_TIME = 5_000


def pending(spark: SparkSession, config: Mapping[str, Any], name: str = DEFAULT_NAME) -> DataFrame:
    """Return a DataFrame with one row for each schedule that is neither delivered nor cancelled.

    `handle` is the text by which the schedule can be cancelled, and `due` is its due time after all changes.
    `topic_delay_ms` is the delay of the delay topic in which the schedule waits, or 0 if it waits in a relay's memory.
    `topic` is the Kafka topic to which it is delivered, and `partition` is null if the key decides the partition.

    Each action on the DataFrame reads the delay topics again, with one task for each partition of the scheduler's
    topics. Relays continue in the meantime, so a schedule that is just being moved or delivered can have two rows, or a
    row that is out of date. `config` has the settings of librdkafka. Raises `ConfigError` if the scheduler has no
    topics.
    """
    with one_sentence():
        partitions = layout_of(config, name).partitions
    # This column has a unique value, so no other DataFrame has an equal plan. Otherwise Spark might use rows that it
    # has cached for that DataFrame.
    numbers = spark.range(0, partitions, 1, partitions).select("id", F.lit(uuid.uuid4().hex))
    return numbers.mapInArrow(shown_as("headway delay.pending", _reading(dict(config), name)), PENDING)


def _reading(config: Mapping[str, Any], name: str) -> Any:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(PENDING, timezone="UTC")
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        with one_sentence():
            found = read_pending(config, name, numbers)
            while some := list(islice(found, _AT_A_TIME)):
                yield _record_batch(some, schema)

    return read


def _record_batch(found: Sequence[Pending], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.array([each.handle for each in found]),
        pa.array([each.schedule.id for each in found]),
        _timestamps([each.due for each in found]),
        _timestamps([each.schedule.at for each in found]),
        pa.array([each.delay_topic for each in found], pa.int64()),
        pa.array([each.schedule.topic for each in found]),
        pa.array([each.schedule.partition for each in found], pa.int32()),
        pa.array([each.message.key() for each in found], pa.binary()),
        pa.array([each.message.value() for each in found], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _timestamps(milliseconds: Sequence[int]) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms", "UTC"))
