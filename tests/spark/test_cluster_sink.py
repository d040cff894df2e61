"""The sink on a real cluster, of which parts are killed: each record is written once."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.cluster import Cluster, Driver, standalone_cluster
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

RECORDS = 3_000  # at 300 in a micro-batch


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def copied(orders: "LevelTopics") -> Counter[int]:
    return Counter(record.number for record in committed(orders.servers, f"{orders.topic}-2"))


def await_copies(orders: "LevelTopics", driver: Driver, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(copied(orders)) < count:
        assert driver.running, driver.log.read_text()[-4000:]
        assert time.monotonic() < deadline, driver.log.read_text()[-4000:]
        time.sleep(0.2)


def start(cluster: Cluster, orders: "LevelTopics", directory: Path) -> Driver:
    return cluster.run("copying", orders.servers, orders.topic, f"{orders.topic}-2", str(directory))


def test_a_task_that_dies_after_its_commit_and_an_executor_that_is_killed_add_and_lose_nothing(
    cluster: Cluster, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(RECORDS))
    (tmp_path / "die").touch()
    driver = start(cluster, orders, tmp_path)
    await_copies(orders, driver, 600)
    cluster.executors()[0].kill()
    driver.wait(120)

    assert not (tmp_path / "die").exists()
    assert copied(orders) == dict.fromkeys(range(RECORDS), 1)


def test_a_killed_driver_goes_on_where_it_was(cluster: Cluster, orders: "LevelTopics", tmp_path: Path) -> None:
    orders.send(0, range(RECORDS))
    for count in (300, 1_200):
        driver = start(cluster, orders, tmp_path)
        await_copies(orders, driver, count)
        driver.kill()
    start(cluster, orders, tmp_path).wait(120)

    assert copied(orders) == dict.fromkeys(range(RECORDS), 1)


def test_a_slow_task_and_its_speculative_copy_write_each_row_once(
    cluster: Cluster, orders: "LevelTopics", tmp_path: Path
) -> None:
    cluster.run("speculating", orders.servers, f"{orders.topic}-2", str(tmp_path)).wait(120)

    assert (tmp_path / "speculative").exists()
    assert copied(orders) == dict.fromkeys(range(4_000), 1)
