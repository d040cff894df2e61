"""The source on a real cluster, of which parts are killed: each record is read once."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.spark.cluster import Cluster, Driver, standalone_cluster

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

RECORDS = 1_500  # of each level; 300 of all in a micro-batch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def await_micro_batches(directory: Path, driver: Driver, count: int) -> None:
    """Until so many are committed."""
    deadline = time.monotonic() + 90
    while len(list(directory.glob("checkpoint/commits/[0-9]*"))) < count:
        assert driver.running, driver.log.read_text()[-4000:]
        assert time.monotonic() < deadline, driver.log.read_text()[-4000:]


def test_a_killed_executor_and_a_killed_driver_cost_no_record_and_repeat_none(
    cluster: Cluster, orders: "LevelTopics", spark: SparkSession, tmp_path: Path
) -> None:
    for level in range(orders.levels):
        orders.send(level, range(RECORDS))

    def start() -> Driver:
        return cluster.run("landing", orders.servers, orders.topic, str(tmp_path))

    first = start()
    await_micro_batches(tmp_path, first, 2)
    cluster.executors()[0].kill()
    await_micro_batches(tmp_path, first, 5)
    first.kill()
    start().wait(120)

    rows = spark.read.parquet(str(tmp_path / "landed")).collect()
    once = {(level, number): 1 for level in range(orders.levels) for number in range(RECORDS)}
    assert Counter((row["level"], row["number"]) for row in rows) == once
