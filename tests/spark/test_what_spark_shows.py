"""What a person sees of ours in Spark's plans, its UI and its logs of Python workers."""

import json
import logging
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headway import Retries, fixed_backoff
from headway.spark import Output, ProgressListener, outputs, parallel_map, repartition_by_key
from headway.spark.report.level_progress import outcomes_of
from tests.spark.test_odd_rows import STAMPS, set_on_topics
from tests.spark.test_workers import await_that

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

TWICE = Retries(fixed_backoff(0.01), max_attempts=2)


def charge(password: str, row: Any) -> int:
    logging.getLogger("billing").warning("declined %s", row.value.decode())
    return 1


class Bank:
    async def charge(self, row: Any) -> int:
        return 1

    def __call__(self, row: Any) -> int:
        return 1


@pytest.fixture
def worker_logs(spark: SparkSession) -> Iterator[None]:
    """Spark keeps what Python workers log."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    yield
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "false")


def test_a_plan_has_the_names_of_the_stage_its_handler_and_the_source(
    spark: SparkSession, orders: "LevelTopics", capsys: pytest.CaptureFixture[str]
) -> None:
    def nested(row: Any) -> int:
        return 1

    read = spark.read.format("headway").options(**orders.options).load()
    in_order = repartition_by_key(read)
    handlers = (partial(charge, "secret"), nested, Bank().charge, Bank())
    for handler in handlers:
        parallel_map(in_order, handler, "int", key="key").explain()
    plans = capsys.readouterr().out
    for name in ("charge", "nested", "Bank.charge", "Bank"):
        assert f"MapInArrow headway parallel_map of {name}(" in plans
    assert plans.count("MapInArrow headway repartition_by_key(") == len(handlers)
    assert plans.count("BatchScan headway[") == len(handlers)
    assert "secret" not in plans


@pytest.mark.slow
@pytest.mark.usefixtures("worker_logs")
def test_handlers_and_the_source_log_where_spark_shows_the_logs_of_python_workers(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    set_on_topics(orders, "message.timestamp.after.max.ms", str(2**63 - 1))  # as before Kafka 4
    orders.send(0, [f"{orders.topic} one"], partition=0)
    orders.send(0, [f"{orders.topic} late"], partition=0, timestamp=STAMPS["nanoseconds"])
    handler, declined = partial(charge, ""), {f"declined {orders.topic} {name}" for name in ("one", "late")}

    read = spark.read.format("headway").options(**orders.options).load()
    parallel_map(read, handler, "int", key=None).collect()
    logs = logged(spark, orders.topic, 3)
    assert {row.msg for row in logs if row.logger == "billing"} == declined
    [ours] = [row for row in logs if row.logger.startswith("headway.spark.source")]
    assert ours.level == "WARNING"

    # A query has a session of its own, and with it logs of its own.
    seen: list[Any] = []

    def look(frame: DataFrame, number: int) -> None:
        frame.collect()
        seen.extend(logged(frame.sparkSession, orders.topic, 2))

    stream = spark.readStream.format("headway").options(**orders.options, startingOffsets="earliest").load()
    writer = parallel_map(stream, handler, "int", key=None).writeStream.foreachBatch(look)
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert {row.msg for row in seen if row.logger == "billing"} == declined
    assert logged(spark, orders.topic, 3) == logs


@pytest.mark.slow
def test_the_progress_of_a_query_counts_outcomes_retries_and_dead_letters(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    def fail_some(row: Any) -> str:
        number = int(row.value)
        if number == 1 or (number == 2 and number not in tried):
            tried.add(number)
            raise ValueError(number)
        return str(number)

    tried: set[int] = set()
    orders.send(0, range(10))
    told: list[str] = []
    listener = ProgressListener(told.append)
    spark.streams.addListener(listener)
    stream = spark.readStream.format("headway").options(**orders.options, startingOffsets="earliest").load()
    rows = parallel_map(stream, fail_some, "string", key=None, retries=TWICE)
    made = outputs(rows, Output(f"{orders.topic}-1", value="result"), dead_letter_topic=f"{orders.topic}-2")
    writer = made.writeStream.format("headway").option("kafka.bootstrap.servers", orders.servers)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()

    progress = query.lastProgress
    assert progress is not None
    [records, stage] = outcomes_of(json.loads(progress.json)).items()
    assert stage[0].startswith("headway parallel_map of fail_some #")
    assert stage[1] == {"ok": 9, "failed": 1, "parked": 0, "later": 0, "expired": 0, "retried": 2}
    assert records[0].startswith(f"headway outputs with dead letters in {orders.topic}-2 #")
    assert records[1] == {"records": 10, "dead_letters": 1}
    await_that(lambda: bool(told))
    spark.streams.removeListener(listener)
    assert told[0].splitlines()[-2:] == [
        "  parallel_map of fail_some: 9 ok, 1 failed, 2 retried",
        f"  outputs with dead letters in {orders.topic}-2: 10 records, 1 dead letters",
    ]


@pytest.mark.slow
def test_one_handler_in_two_stages_of_a_query_is_counted_in_each(spark: SparkSession, orders: "LevelTopics") -> None:
    orders.send(0, range(3))
    read = spark.read.format("headway").options(**orders.options, splitPartitions="false").load()
    low, high = (parallel_map(read.filter(which), Bank(), "int", key="key") for which in ("level = 0", "level > 0"))
    assert low.union(high).count() == 3


def logged(session: SparkSession, topic: str, count: int) -> list[Any]:
    """The lines that name a topic, once there are so many: Spark reads them beside the query that writes them."""
    deadline = time.monotonic() + 30
    while len(rows := [row for row in session.tvf.python_worker_logs().collect() if topic in row.msg]) < count:
        assert time.monotonic() < deadline, rows
    return rows
