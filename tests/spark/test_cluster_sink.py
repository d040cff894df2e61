"""The sink on a real cluster, of which parts are killed: each record is written once."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headway.spark.delay.auditing import FAULTS, audit, summary
from tests.spark.cluster import Cluster, Driver, standalone_cluster
from tests.spark.conftest import LevelTopics
from tests.spark.stored import committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

RECORDS = 3_000  # at 300 in a micro-batch
CAME = "id string, delivered timestamp"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def copied(orders: LevelTopics) -> Counter[int]:
    return Counter(record.number for record in committed(orders.servers, f"{orders.topic}-2"))


def await_that(condition: Callable[[], bool], driver: Driver) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert driver.running, driver.log.read_text()[-4000:]
        assert time.monotonic() < deadline, driver.log.read_text()[-4000:]


def await_copies(orders: LevelTopics, driver: Driver, count: int) -> None:
    await_that(lambda: len(copied(orders)) >= count, driver)


def start(cluster: Cluster, orders: LevelTopics, directory: Path) -> Driver:
    return cluster.run("copying", orders.servers, orders.topic, f"{orders.topic}-2", str(directory))


def test_a_task_that_dies_after_its_commit_and_an_executor_that_is_killed_add_and_lose_nothing(
    cluster: Cluster, orders: LevelTopics, tmp_path: Path
) -> None:
    orders.send(0, range(RECORDS))
    (tmp_path / "die").touch()
    driver = start(cluster, orders, tmp_path)
    await_copies(orders, driver, 600)
    cluster.executors()[0].kill()
    driver.wait(120)

    assert not (tmp_path / "die").exists()
    assert copied(orders) == dict.fromkeys(range(RECORDS), 1)


def test_a_killed_driver_goes_on_where_it_was(cluster: Cluster, orders: LevelTopics, tmp_path: Path) -> None:
    orders.send(0, range(RECORDS))
    for count in (300, 1_200):
        driver = start(cluster, orders, tmp_path)
        await_copies(orders, driver, count)
        driver.kill()
    start(cluster, orders, tmp_path).wait(120)

    assert copied(orders) == dict.fromkeys(range(RECORDS), 1)


@pytest.mark.timeout(1800)  # five programs start, each with three executors or four
def test_whichever_write_a_driver_is_killed_after_and_whichever_executors_come_and_go_the_audit_finds_no_fault(
    orders: LevelTopics, spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for level in range(orders.levels):
        orders.send(level, range(RECORDS // 3), key=f"key of {level}")
    copies, dead = (LevelTopics(orders.servers, f"{orders.topic}-{use}", levels=1) for use in ("copies", "dead"))
    [target], [letters] = copies.kafka_topics, dead.kafka_topics
    checkpoint = tmp_path / "checkpoint"
    writes: dict[str, Callable[[], int]] = {
        "planned": lambda: len(list(checkpoint.glob("offsets/[0-9]*"))),
        "written": lambda: len(committed(orders.servers, target)),
        "committed": lambda: len(list(checkpoint.glob("commits/[0-9]*"))),
    }
    with standalone_cluster(tmp_path_factory.mktemp("three"), workers=3) as three:

        def begin() -> Driver:
            return three.run("handing_on", orders.servers, orders.topic, target, letters, str(tmp_path))

        for number, write in enumerate([*writes, "written"]):
            seen, driver = writes[write](), begin()
            if number == 2:
                three.add_worker()
            await_that(lambda write=write, seen=seen: writes[write]() > seen, driver)  # type: ignore[misc]
            if number == 1:
                three.executors()[0].kill()
                await_that(lambda: writes["committed"]() > 0, driver)
            driver.kill()
        assert 0 < writes["committed"]() < RECORDS // 100
        begin().wait(600)

    places = [f"{level} {number}" for level in range(orders.levels) for number in range(RECORDS // 3)]
    sent = [(place, datetime.fromtimestamp(0, UTC)) for place in places]
    came = [((record.value or b"").decode(), datetime.now(UTC)) for record in committed(orders.servers, target)]
    scheduled, delivered = spark.createDataFrame(sent, "id string, due timestamp"), spark.createDataFrame(came, CAME)
    [found] = summary(audit(scheduled, delivered)).collect()
    assert (found["ids"], found["delivered"]) == (RECORDS, RECORDS)
    assert [found[fault] for fault in FAULTS] == [0] * len(FAULTS)
    assert committed(orders.servers, letters) == []


def test_a_slow_task_and_its_speculative_copy_write_each_row_once(
    cluster: Cluster, orders: LevelTopics, tmp_path: Path
) -> None:
    cluster.run("speculating", orders.servers, f"{orders.topic}-2", str(tmp_path)).wait(120)

    assert (tmp_path / "speculative").exists()
    assert copied(orders) == dict.fromkeys(range(4_000), 1)
