"""A query that was stopped between planning and committing a micro-batch goes on from its checkpoint."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headway.spark.source import batch_planner
from headway.spark.source.options import parse
from headway.spark.source.schema import schema
from headway.spark.source.stream_reader import StreamReader

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def run(
    spark: SparkSession, orders: "LevelTopics", into: "MicroBatches", checkpoint: Path, starting: str = "earliest"
) -> None:
    reader = spark.readStream.format("headway").options(**orders.options, startingOffsets=starting)
    frame = reader.option("maxRecordsPerTrigger", 140).load()
    writer = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def planned(checkpoint: Path) -> dict[int, Any]:
    """The end offsets of each micro-batch in Spark's own log."""
    logs = (path for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal())
    return {int(path.name): json.loads(path.read_text().splitlines()[-1]) for path in logs}


def test_a_restarted_query_reads_the_same_ranges_again_and_in_all_every_record_once(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    for level in range(orders.levels):
        orders.send(level, range(level * 1_000, level * 1_000 + 100))

    def fail_in_the_second(number: int) -> None:
        if number == 1:
            raise RuntimeError("the driver dies here")

    killed = micro_batches(fail_in_the_second)
    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        run(spark, orders, killed, tmp_path)
    plan = planned(tmp_path)
    # Without its log the second micro-batch would now be planned otherwise.
    orders.send(2, range(3_000, 3_100))

    restarted = micro_batches()
    run(spark, orders, restarted, tmp_path)

    assert sorted(killed.rows) == [0, 1]
    assert min(restarted.rows) == 1
    assert restarted.rows[1] == killed.rows[1]
    assert planned(tmp_path)[1] == plan[1]
    everything = sorted([*killed.values(0), *restarted.all_values()])
    assert everything == [*range(100), *range(1_000, 1_100), *range(2_000, 2_100), *range(3_000, 3_100)]


@pytest.mark.slow
def test_a_query_that_dies_in_its_first_micro_batch_still_begins_where_it_began(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    def fail(number: int) -> None:
        orders.send(0, range(10, 20))
        raise RuntimeError("the driver dies here")

    orders.send(0, range(10))
    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        run(spark, orders, micro_batches(fail), tmp_path, starting="latest")
    restarted = micro_batches()
    run(spark, orders, restarted, tmp_path, starting="latest")

    assert restarted.all_values() == list(range(10, 20))


def test_a_micro_batch_that_is_planned_anew_on_another_machine_has_the_same_rows_in_the_same_tasks(
    orders: "LevelTopics", monkeypatch: pytest.MonkeyPatch
) -> None:
    for level in range(orders.levels):
        orders.send(level, range(500 + 100 * level))
    options = parse({**orders.options, "startingOffsets": "earliest"})

    monkeypatch.setattr(batch_planner, "cluster_parallelism", lambda: 4)
    first = StreamReader(options, schema(include_headers=False))
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    before = [task.value for task in first.partitions(start, end)]
    monkeypatch.setattr(batch_planner, "cluster_parallelism", lambda: 2)
    logged = json.loads(json.dumps([start, end]))
    after = [task.value for task in StreamReader(options, schema(include_headers=False)).partitions(*logged)]

    assert len(before) == 4
    assert after == before
