"""The source on a real cluster, of which parts are killed: each record is read once."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.cluster import Cluster, Driver, standalone_cluster

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

ROWS = 12_000  # of each level, beyond what one task reads alone
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


def test_tasks_spread_over_all_executors_and_follow_those_that_come_and_go(
    orders: "LevelTopics", tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def next_micro_batch(driver: Driver, *, seen: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 120
        while True:
            assert driver.running, driver.log.read_text()[-4000:]
            assert time.monotonic() < deadline, driver.log.read_text()[-4000:]
            file = tmp_path / "micro-batches"
            found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            if sum(line["rows"] for line in found) == seen:
                return found
            time.sleep(0.05)

    def await_micro_batch_with(tasks: int, driver: Driver, sent: int) -> dict[str, Any]:
        """Send until a micro-batch has so many tasks: Spark hears of executors when it hears of them."""
        deadline = time.monotonic() + 90
        while True:
            orders.send(1, range(ROWS))
            sent += ROWS
            last = next_micro_batch(driver, seen=sent)[-1]
            if (last["tasks"], len(last["places"])) == (tasks, tasks):
                return {**last, "sent": sent}
            assert time.monotonic() < deadline, driver.log.read_text()[-4000:]

    with standalone_cluster(tmp_path_factory.mktemp("growing"), workers=3) as growing:
        driver = growing.run("spreading", orders.servers, orders.topic, str(tmp_path))
        three = await_micro_batch_with(3, driver, 0)
        growing.add_worker()
        four = await_micro_batch_with(4, driver, three["sent"])
        growing.workers[0].kill()
        fewer = await_micro_batch_with(3, driver, four["sent"])
        driver.tell("end")
        driver.wait(60)
    assert set(fewer["places"]) <= set(four["places"])
