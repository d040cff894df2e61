"""The programs of docs/spark.md, docs/spark-handlers.md and docs/spark-files.md run, one after the other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from pyspark.sql import SparkSession

from headway import Producer, Relay, Scheduler, Settled
from headway.broker import LocalBroker
from headway.kafka.admin import Admin
from tests.spark.stored import committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
HANDLERS_PAGE = PAGE.with_name("spark-handlers.md")
FILES_PAGE = PAGE.with_name("spark-files.md")
TOPICS = [
    "orders-0",
    "orders-1",
    "orders-2",
    "payments",
    "clicks",
    "copies",
    "counts",
    "receipts",
    "reminders",
    "orders-dead",
    "spark-workers-docs",
]


@pytest.fixture
def servers() -> Iterator[str]:
    """A broker of its own, because programs of other pages use the same names of topics."""
    with LocalBroker() as broker:
        yield broker.bootstrap_servers


@pytest.mark.slow
def test_the_programs_of_the_pages_do_what_they_say(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    Admin({"bootstrap.servers": servers}).create(TOPICS, 2)
    replaced = {
        "localhost:9092": servers,
        "checkpoints/": f"{tmp_path}/",
        "billing:bill": "tests.spark.programs.handlers:shown",
        "wait(3600)": "wait(1)",
        "addListener(ProgressListener())": "addListener(listener := ProgressListener())",
        "register(metrics)": "collector = register(metrics)",
    }
    names: dict[str, Any] = {"spark": spark}
    Scheduler({"bootstrap.servers": servers}).close()  # creates the delay topics
    with Relay({"bootstrap.servers": servers}).running():
        for program in re.findall(r"```python\n(.*?)```", PAGE.read_text() + HANDLERS_PAGE.read_text(), re.DOTALL):
            for old, new in replaced.items():
                program = program.replace(old, new)  # noqa: PLW2901
            exec(compile(program, str(PAGE), "exec"), names)  # noqa: S102 - our own text
            for query in spark.streams.active:
                query.processAllAvailable()
        for query in spark.streams.active:
            query.stop()
    spark.streams.removeListener(names["listener"])
    spark.streams.removeListener(names["metrics"])
    samples = {sample.name: sample.value for sample in names["metrics"].measure()()}
    REGISTRY.unregister(names["collector"])
    assert samples["headway_spark_query_running"] == 0

    assert sorted(record.value or b"" for record in committed(servers, "copies")) == [b"1.50", b"42.00"]
    counted = {record.key: record.value for record in committed(servers, "counts")}
    assert counted == {b"0": b"1", b"2": b"1"}
    receipts = {record.key: record.value for record in committed(servers, "receipts")}
    assert receipts == {b"7": b"charged 42.00", b"8": b"charged 1.50"}
    assert committed(servers, "orders-dead") == []
    assert names["counts"] == {Settled.CANCELLED: 1}


@pytest.mark.slow
def test_one_query_acts_and_another_stores_as_the_page_of_files_says(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    servers = headway_broker.bootstrap_servers
    Admin({"bootstrap.servers": servers}).create([f"filed-{level}" for level in range(3)], 2)
    Admin({"bootstrap.servers": servers}).create(["filed-receipts", "filed-dead"], 2)
    with Producer({"bootstrap.servers": servers, "levels": 3}) as producer:
        producer.send("filed", b"13.00", b"9", level=2)
    replaced = {
        "localhost:9092": servers,
        '"checkpoints/': f'"{tmp_path}/',
        '"files/': f'"{tmp_path}/files/',
        'subscribe="orders"': 'subscribe="filed"',
        "orders-dead": "filed-dead",
        '"receipts"': '"filed-receipts"',
        "minRecordsPerTrigger=1_000_000": "minRecordsPerTrigger=1",
    }
    names: dict[str, Any] = {"spark": spark}
    for program in re.findall(r"```python\n(.*?)```", FILES_PAGE.read_text(), re.DOTALL):
        for old, new in replaced.items():
            program = program.replace(old, new)  # noqa: PLW2901
        exec(compile(program, str(FILES_PAGE), "exec"), names)  # noqa: S102 - our own text
        for query in spark.streams.active:
            query.processAllAvailable()
    for query in spark.streams.active:
        query.stop()

    rows = spark.read.parquet(f"{tmp_path}/files/receipts").where("customer = '9'").collect()
    assert [row["receipt"] for row in rows] == ["charged 13.00"]
