"""Reads of a part: some columns, and no more records than the filters of a query need."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

HOUR_MS = 3_600_000
FIRST_MS = (int(time.time() * 1000) // HOUR_MS - 30) * HOUR_MS  # what is older than a week can be deleted


def read(spark: SparkSession, orders: "LevelTopics", schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("headway").options(**orders.options, **options)
    return (reader if schema is None else reader.schema(schema)).load()


def at(hour: int) -> str:
    """The hour of the day of the records, in SQL."""
    return f"timestamp'{datetime.fromtimestamp(FIRST_MS / 1000 + hour * 3600, UTC).isoformat()}'"


def tasks(frame: DataFrame) -> int:
    """How many tasks read a frame: one for each record, with maxRecordsPerPartition=1."""
    return frame.rdd.getNumPartitions()


@pytest.fixture
def day(orders: "LevelTopics") -> "LevelTopics":
    """A record at each hour of a day at level 1, and 24 of now at level 0."""
    for hour in range(24):
        orders.send(1, [hour], partition=hour % 2, timestamp=FIRST_MS + hour * HOUR_MS, key=b"even odd"[hour % 2 * 5 :])
    orders.send(0, range(24))
    return orders


def test_only_the_columns_asked_for_are_made(spark: SparkSession, day: "LevelTopics") -> None:
    narrow = read(spark, day, "offset bigint, level int").where("level = 1")
    assert narrow.columns == ["offset", "level"]
    assert sorted(row["offset"] for row in narrow.collect()) == sorted([*range(12)] * 2)
    headers = read(spark, day, "headers array<struct<key:string,value:binary>>")
    assert headers.count() == 48


@pytest.mark.quick("offset int-has the column `offset` as int, but the headway source reads it as bigint")
@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("offset int", "has the column `offset` as int, but the headway source reads it as bigint"),
        ("ofset bigint", "has a column `ofset`, but the headway source has only key, value, topic"),
    ],
)
def test_a_column_that_the_source_does_not_have_is_a_sentence(
    spark: SparkSession, orders: "LevelTopics", schema: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(AnalysisException, match=sentence):
        read(spark, orders, schema).collect()
    stream = spark.readStream.format("headway").options(**orders.options).schema(schema).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match=sentence):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
def test_a_stream_reads_the_columns_asked_for(
    spark: SparkSession, day: "LevelTopics", micro_batches: "type[MicroBatches]", tmp_path: Path
) -> None:
    seen = micro_batches()
    stream = spark.readStream.format("headway").options(**day.options, startingOffsets="earliest")
    asked = stream.schema("partition int, offset bigint, level int").load()
    writer = asked.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    [rows] = seen.rows.values()
    assert (len(rows), rows[0].asDict()) == (48, {"partition": 0, "offset": 0, "level": 0})


@pytest.mark.quick("level in (1, 2) and partition = 0-12-12")
@pytest.mark.parametrize(
    ("where", "found", "read_at_most"),
    [
        ("level = 1", 24, 24),
        ("level in (1, 2) and partition = 0", 12, 12),
        ("offset >= 10 and offset < 11", 4, 4),
        ("level = 2", 0, 1),
        (f"timestamp >= {at(20)} and level = 1", 4, 4),
        (f"timestamp >= {at(3)} and timestamp < {at(4)}", 1, 21 + 24),
        ("level = 1 or offset = 3", 26, 48),
    ],
)
def test_a_filter_bounds_what_is_read(
    spark: SparkSession, day: "LevelTopics", where: str, found: int, read_at_most: int
) -> None:
    frame = read(spark, day, maxRecordsPerPartition=1, minPartitions=48).where(where)
    assert frame.count() == found
    assert tasks(frame) <= read_at_most


@pytest.mark.slow
def test_with_a_promise_of_order_an_hour_ends_where_it_ends(spark: SparkSession, day: "LevelTopics") -> None:
    hour = f"timestamp >= {at(3)} and timestamp < {at(5)}"
    frame = read(spark, day, maxRecordsPerPartition=1, minPartitions=48, timestampLateness="0s").where(hour)
    assert (frame.count(), tasks(frame)) == (2, 2)
    late = read(spark, day, maxRecordsPerPartition=1, minPartitions=48, timestampLateness="2h").where(hour)
    assert (late.count(), tasks(late)) == (2, 4)


def test_a_record_that_came_late_is_found_where_no_order_is_promised(spark: SparkSession, day: "LevelTopics") -> None:
    day.send(1, [99], partition=1, timestamp=FIRST_MS + 4 * HOUR_MS)
    hour = f"timestamp >= {at(4)} and timestamp < {at(5)}"
    assert sorted(int(row["value"]) for row in read(spark, day).where(hour).collect()) == [4, 99]


def test_a_key_is_looked_for_in_the_task(spark: SparkSession, day: "LevelTopics") -> None:
    found = read(spark, day, "key binary, level int").where(sf.col("key") == sf.lit(bytearray(b"odd")))
    assert found.count() == 12


@pytest.mark.slow
def test_a_session_that_pushes_no_filters_reads_all(spark: SparkSession, day: "LevelTopics") -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = read(spark, day, maxRecordsPerPartition=1, minPartitions=48).where("level = 1")
        assert (frame.count(), tasks(frame)) == (24, 48)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_offsets_that_are_gone_are_a_sentence_with_a_filter_too(spark: SparkSession, day: "LevelTopics") -> None:
    start = json.dumps({day.topic: {str(level): {"0": 0, "1": 0} for level in range(3)}})
    day.cut_off(0, 0, 5)
    with pytest.raises(AnalysisException, match="Offsets from 0 to before 12 were requested for"):
        read(spark, day, startingOffsets=start).where("offset >= 7").collect()
