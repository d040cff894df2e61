"""The tasks that read a micro-batch: as many as options and cluster say, and in order where that is asked for."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

from headway.errors import ConfigError
from headway.spark import parallel_map, repartition_by_key

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROWS = 3_000  # in 2 partitions of level 1


@pytest.fixture
def filled(orders: "LevelTopics") -> "LevelTopics":
    """Level 1 has rows in both of its partitions, and level 2 has a few."""
    for partition in range(2):
        numbers = range(partition * ROWS // 2, (partition + 1) * ROWS // 2)
        orders.send(1, numbers, partition=partition, key=f"k{partition}".encode())
    orders.send(2, range(ROWS, ROWS + 100))
    return orders


def tasks_of(spark: SparkSession, topics: "LevelTopics", checkpoint: Path, **options: object) -> list[dict[int, int]]:
    """Return for each micro-batch how many rows each task has, after a check that all rows came once."""
    given = {**topics.options, "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("headway").options(**given).load()  # type: ignore[arg-type]
    micro_batches: list[dict[int, int]] = []
    values: list[int] = []

    def note(frame: DataFrame, number: int) -> None:
        rows = frame.select("value", F.spark_partition_id().alias("task")).collect()
        values.extend(int(row["value"]) for row in rows)
        tasks = [row["task"] for row in rows]
        micro_batches.append({task: tasks.count(task) for task in tasks})

    writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(values) == list(range(ROWS + 100))
    return micro_batches


@pytest.mark.slow
def test_partitions_that_can_be_split_feed_as_many_tasks_as_are_wanted(
    spark: SparkSession, filled: "LevelTopics", tmp_path: Path
) -> None:
    [tasks] = tasks_of(spark, filled, tmp_path, minPartitions=10, splitPartitions="true")
    assert list(tasks.values()) == [310] * 10


@pytest.mark.slow
def test_a_task_has_no_more_records_than_the_option_says(
    spark: SparkSession, filled: "LevelTopics", tmp_path: Path
) -> None:
    [tasks] = tasks_of(spark, filled, tmp_path, maxRecordsPerPartition=500, splitPartitions="true")
    assert len(tasks) == 7
    assert max(tasks.values()) <= 500


@pytest.mark.slow
def test_partitions_stay_whole_in_streams_unless_it_is_asked_for(
    spark: SparkSession, filled: "LevelTopics", tmp_path: Path
) -> None:
    [tasks] = tasks_of(spark, filled, tmp_path, minPartitions=10, maxRecordsPerPartition=1)
    assert sorted(tasks.values()) == [50, 50, ROWS // 2, ROWS // 2]


@pytest.mark.slow
def test_whole_partitions_share_a_task_only_within_the_records_that_the_option_says(
    spark: SparkSession, filled: "LevelTopics", tmp_path: Path
) -> None:
    [tasks] = tasks_of(spark, filled, tmp_path, minPartitions=1, maxRecordsPerPartition=ROWS // 2 + 40)
    assert sorted(tasks.values()) == [100, ROWS // 2, ROWS // 2]


@pytest.mark.slow
def test_the_tasks_follow_from_what_the_session_runs_at_once(
    spark: SparkSession, filled: "LevelTopics", tmp_path: Path
) -> None:
    [tasks] = tasks_of(spark, filled, tmp_path)
    assert len(tasks) == min(4, spark.sparkContext.defaultParallelism)


def test_a_batch_reads_one_partition_in_many_tasks(spark: SparkSession, filled: "LevelTopics") -> None:
    frame = spark.read.format("headway").options(**filled.options, minPartitions=20).load()
    rows = frame.select("value", F.spark_partition_id().alias("task")).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(ROWS + 100))
    assert {row["task"] for row in rows} == set(range(20))


@pytest.mark.slow
def test_records_come_back_in_the_order_of_their_keys_behind_split_partitions(
    spark: SparkSession, filled: "LevelTopics", tmp_path: Path
) -> None:
    given = {**filled.options, "startingOffsets": "earliest", "splitPartitions": "true", "minPartitions": "9"}
    frame = repartition_by_key(spark.readStream.format("headway").options(**given).load(), 3)
    seen: list[list[tuple[int, bytes | None, int]]] = []

    def note(frame: DataFrame, number: int) -> None:
        rows = frame.select("level", "key", "value", F.spark_partition_id().alias("task")).collect()
        seen.extend(
            [
                [(row["level"], row["key"], int(row["value"])) for row in rows if row["task"] == task]
                for task in range(3)
            ]
        )

    writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()

    assert sorted(value for task in seen for _, _, value in task) == list(range(ROWS + 100))
    for task in seen:
        assert [level for level, _, _ in task] == sorted((level for level, _, _ in task), reverse=True)
    for key in (b"k0", b"k1"):
        [values] = [found for task in seen if (found := [value for _, k, value in task if k == key])]
        assert values == sorted(values)
        assert len(values) == ROWS // 2
    # Records without a key are spread.
    assert all(any(key is None for _, key, _ in task) for task in seen)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("minPartitions", "0", "The option `minPartitions` is '0'; it must be a whole number of at least 1"),
        ("minPartitions", "1000000", "The option `minPartitions` is '1000000'; it must be at most 100000"),
        ("maxRecordsPerPartition", "few", "The option `maxRecordsPerPartition` is 'few'"),
        ("splitPartitions", "perhaps", "The option `splitPartitions` is 'perhaps'. Choose true or false."),
    ],
)
def test_a_wrong_option_is_a_sentence_before_the_query_starts(
    spark: SparkSession, orders: "LevelTopics", option: str, value: str, sentence: str
) -> None:
    with pytest.raises(AnalysisException) as refused:
        spark.readStream.format("headway").options(**orders.options, **{option: value}).load()
    assert sentence in str(refused.value)


def test_a_frame_that_lost_its_columns_cannot_be_brought_in_order(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="The DataFrame has no column `topic`"):
        repartition_by_key(spark.createDataFrame([(b"k", 1)], "key binary, offset long"))


@pytest.mark.slow
def test_a_key_is_refused_where_its_rows_may_be_in_several_tasks(spark: SparkSession, orders: "LevelTopics") -> None:
    def refused(frame: DataFrame, key: str | None = "key") -> bool:
        try:
            parallel_map(frame, lambda row: 1, "int", key=key)
        except ConfigError as error:
            return "Set splitPartitions to false, put repartition_by_key before parallel_map" in str(error)
        return False

    batch = spark.read.format("headway").options(**orders.options)
    stream = spark.readStream.format("headway").options(**orders.options)
    assert refused(batch.load())
    assert refused(batch.load().filter("level > 0").select("key", "value"))
    assert not refused(batch.load(), key=None)
    assert not refused(repartition_by_key(batch.load()))
    assert not refused(batch.load().repartition(2, "key"))
    assert not refused(batch.load().groupBy("key").count())
    names = spark.createDataFrame([(0, "low")], "level int, SortCode string")
    assert refused(batch.load().join(F.broadcast(names), "level"))
    assert refused(batch.load().union(batch.load().distinct()))
    assert refused(batch.load().withColumn("Repartition", F.lit("Aggregate")))
    assert not refused(batch.option("splitPartitions", "false").load())
    assert not refused(stream.load())
    assert refused(stream.option("splitpartitions", "TRUE").load())
    assert not refused(spark.createDataFrame([("k",)], "key string"))
