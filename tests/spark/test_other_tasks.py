"""Queries that write to `format("headway")` and start again in a way that divides their rows into other tasks."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from headway.spark import Output, outputs, parallel_map, repartition_by_key
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

RECORDS = 600

Made = Callable[[SparkSession, "LevelTopics"], DataFrame]


@contextmanager
def as_on_cores(spark: SparkSession, count: int) -> Iterator[None]:
    """Have Spark join the tasks behind a shuffle into this many, as it does by the number of cores."""
    settings = {
        "spark.sql.shuffle.partitions": "16",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1",
        "spark.sql.adaptive.coalescePartitions.minPartitionNum": str(count),
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def stream(spark: SparkSession, orders: "LevelTopics", levels: int = 2) -> DataFrame:
    given = {**orders.options, "levels": str(levels), "startingOffsets": "earliest", "includeHeaders": "true"}
    return spark.readStream.format("headway").options(**given).load()


def by_key(spark: SparkSession, orders: "LevelTopics") -> DataFrame:
    return repartition_by_key(stream(spark, orders)).select("key", "value")


def joined(spark: SparkSession, orders: "LevelTopics") -> DataFrame:
    names = spark.range(RECORDS).selectExpr("cast(cast(id as string) as binary) as value", "id as number")
    both = stream(spark, orders).join(names.hint("shuffle_hash"), "value")
    return both.select("key", "value")


def run(frame: DataFrame, orders: "LevelTopics", checkpoint: Path, **options: str) -> None:
    writer = frame.writeStream.format("headway").option("kafka.bootstrap.servers", orders.servers)
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def copies(orders: "LevelTopics", topic: str) -> Counter[int]:
    return Counter(record.number for record in committed(orders.servers, topic))


@pytest.mark.slow
@pytest.mark.parametrize("frame", [by_key, joined])
def test_a_driver_that_dies_between_the_sinks_commit_and_sparks_doubles_nothing_on_other_cores(
    spark: SparkSession,
    orders: "LevelTopics",
    tmp_path: Path,
    frame: Callable[[SparkSession, "LevelTopics"], DataFrame],
) -> None:
    topic = f"{orders.topic}-2"
    orders.send(0, range(RECORDS))
    with as_on_cores(spark, 2):
        run(frame(spark, orders), orders, tmp_path, topic=topic)
    for commit in [*(tmp_path / "commits").glob("0"), *(tmp_path / "commits").glob(".0.*")]:
        commit.unlink()
    orders.send(1, range(RECORDS, 2 * RECORDS) if frame is by_key else ())
    with as_on_cores(spark, 16):
        run(frame(spark, orders), orders, tmp_path, topic=topic)
    assert copies(orders, topic) == dict.fromkeys(range((2 if frame is by_key else 1) * RECORDS), 1)


@pytest.mark.slow
def test_the_tasks_of_repartition_by_key_do_not_depend_on_the_cores(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(RECORDS))
    tasks: list[int] = []

    def note(frame: DataFrame, number: int) -> None:
        tasks.append(frame.select(sf.spark_partition_id()).distinct().count())

    with as_on_cores(spark, 2):
        writer = repartition_by_key(stream(spark, orders)).writeStream.foreachBatch(note)
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert tasks == [16]


def handed_on(spark: SparkSession, orders: "LevelTopics", *topics: str) -> DataFrame:
    def answer(row: Row) -> str:
        return str(row["value"].decode())

    answered = parallel_map(stream(spark, orders, levels=1), answer, "string", key=None)
    return outputs(answered, *(Output(topic, "result") for topic in topics), dead_letter_topic=f"{orders.topic}-dead")


@pytest.mark.slow
def test_a_copied_checkpoint_or_an_older_one_does_not_pass_over_rows_for_other_topics(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    here, there = f"{orders.topic}-2", f"{orders.topic}-1"
    first, backup, copy = (tmp_path / name for name in ("first", "backup", "copy"))
    orders.send(0, range(100))
    run(handed_on(spark, orders, here), orders, first)
    shutil.copytree(first, backup)
    orders.send(0, range(100, 200))
    run(handed_on(spark, orders, here), orders, first)
    shutil.copytree(backup, copy)

    with pytest.raises(StreamingQueryException, match="micro-batch 1 would write to other topics, or another cluster"):
        run(handed_on(spark, orders, here, there), orders, backup)
    with pytest.raises(StreamingQueryException, match="a second query that started with a copy"):
        run(handed_on(spark, orders, there), orders, copy)
    run(handed_on(spark, orders, there), orders, copy, markerTopic="headway-markers-of-the-copy")
    assert copies(orders, there) == dict.fromkeys(range(100, 200), 1)
    assert copies(orders, here) == dict.fromkeys(range(200), 1)
