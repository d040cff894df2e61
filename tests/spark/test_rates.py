"""One rate over all tasks, on a real Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from headway.spark import InputRow, parallel_map
from tests.spark.cluster import standalone_cluster

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

RATE = 50


async def answer(row: InputRow) -> int:
    """Return a result at once."""
    return 1


def assert_at_rate(starts: Sequence[float]) -> None:
    """No stretch has more starts than the rate allows, with a burst of a tenth of a second and one grant."""
    starts = sorted(starts)
    for first, begin in enumerate(starts):
        for count, end in enumerate(starts[first:], start=1):
            assert count <= (end - begin + 0.1) * RATE * 1.1 + 3


def test_the_tasks_of_all_micro_batches_keep_one_rate(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(150))
    options = {**orders.options, "startingOffsets": "earliest", "maxRecordsPerTrigger": "50"}
    read = spark.readStream.format("headway").options(**options).load()
    limited = parallel_map(read, answer, "int", key="key", rate_limit=RATE)
    query = limited.writeStream.format("memory").queryName("limited").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()
    rows = spark.table("limited").selectExpr("outcome", "cast(started as double) as started").collect()
    assert [row.outcome for row in rows] == ["ok"] * 150
    assert_at_rate([row.started for row in rows])


@pytest.mark.slow
def test_executors_keep_one_rate_together(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as cluster:
        found = tmp_path / "started"
        cluster.run("limiting", str(found), str(RATE)).wait(300)
    lines = [line.split() for line in found.read_text().splitlines()]
    assert len(lines) == 400
    assert len({executor for _, executor in lines}) == 2
    starts = [float(start) for start, _ in lines]
    assert_at_rate(starts)
    assert max(starts) - min(starts) <= 400 / RATE * 1.5
