"""Makes rows and DataFrames without Kafka, for tests of handlers and of the records that are made from outcomes."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from headway.declarations import shown
from headway.errors import ConfigError
from headway.records.record_types import ConsumerRecord
from headway.spark.source.schema import schema
from headway.spark.stage.input_row import ColumnValues, InputRow

_EPOCH = datetime.fromtimestamp(0, UTC)


def row(record: ConsumerRecord | None = None, **columns: Any) -> InputRow:
    """Make a row as a handler of `parallel_map` gets it, so that a test can call the handler directly.

    If `record` is given, which `headway.testing.record` makes, the row has the columns of `format("headway")`,
    including `headers`, and the attributes `origin`, `kafka_topic`, `raw_key` and `raw_value`. `columns` are further
    columns with their values. Without a record, the row has only these columns. No Spark session is needed.

    Raises `ConfigError` if `record` is not a `ConsumerRecord`.
    """
    level_topics = record is not None and _has_level_topics(record)
    source = schema(include_headers=True, level_topics=level_topics)
    batch = (
        pa.RecordBatch.from_pylist([{}], pa.schema([]))
        if record is None
        else pa.RecordBatch.from_pylist([_columns_of(record, record.offset)], to_arrow_schema(source, timezone="UTC"))
    )
    made = ColumnValues(batch, level_topics=level_topics)
    made.names = [*made.names, *(name for name in columns if name not in made.names)]
    made.update({name: [value] for name, value in columns.items()})
    return InputRow(made, 0)


def frame(spark: SparkSession, records: Iterable[ConsumerRecord]) -> DataFrame:
    """Make a DataFrame of records like the DataFrame that `spark.read.format("headway")` returns, without Kafka.

    The DataFrame has one Spark partition with the records in the given order, and has the column `headers`. If several
    records have the same topic, partition and offset, as by default with `headway.testing.record`, each later one gets
    the next offset.

    Raises `ConfigError` if an item is not a `ConsumerRecord`, or if some records have a level and others do not.
    """
    rows: list[dict[str, Any]] = []
    next_offsets: dict[tuple[str, int], int] = {}
    kinds = set()
    for record in records:
        kinds.add(_has_level_topics(record))
        place = record.kafka_topic, record.partition
        offset = max(record.offset, next_offsets.get(place, 0))
        next_offsets[place] = offset + 1
        rows.append(_columns_of(record, offset))
    if len(kinds) > 1:
        raise ConfigError(
            "Some of the records have a level, but others do not. Give either all of them a level, or none of them."
        )
    columns = schema(include_headers=True, level_topics=kinds == {True})
    in_order = [tuple(each[name] for name in columns.names) for each in rows]
    return spark.createDataFrame(in_order, columns).coalesce(1)


def _has_level_topics(record: ConsumerRecord) -> bool:
    if not isinstance(record, ConsumerRecord):
        raise ConfigError(f"The record is {shown(record)}; make it with headway.testing.record.")
    return record.kafka_topic != record.topic


def _columns_of(record: ConsumerRecord, offset: int) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in record.headers]
    return {
        "key": record.raw_key,
        "value": record.raw_value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": offset,
        "timestamp": _EPOCH + timedelta(milliseconds=record.timestamp),
        "timestampType": 0,
        "headers": headers or None,
        "level": record.level,
    }
