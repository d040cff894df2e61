"""The programs of docs/spark.md run, one after the other."""

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from headway import Relay, Scheduler, Settled
from headway.broker import LocalBroker
from tests.spark.stored import committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TOPICS = ["orders-0", "orders-1", "orders-2", "copies", "receipts", "reminders", "orders-dead", "spark-workers-docs"]


def test_the_programs_of_the_page_do_what_it_says(
    spark: SparkSession, headway_broker: LocalBroker, tmp_path: Path
) -> None:
    servers = headway_broker.bootstrap_servers
    admin = AdminClient({"log_level": 0, "bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in TOPICS]).values():
        future.result(30)
    replaced = {
        "localhost:9092": servers,
        "checkpoints/": f"{tmp_path}/",
        "billing:bill": "tests.spark.programs.handlers:shown",
        "wait(3600)": "wait(1)",
    }
    names: dict[str, Any] = {"spark": spark}
    Scheduler({"bootstrap.servers": servers}).close()  # makes the delay lines, if no other test has
    with Relay({"bootstrap.servers": servers}).running():
        for program in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            for old, new in replaced.items():
                program = program.replace(old, new)  # noqa: PLW2901
            exec(compile(program, str(PAGE), "exec"), names)  # noqa: S102 - our own text
            for query in spark.streams.active:
                query.processAllAvailable()
        for query in spark.streams.active:
            query.stop()

    assert sorted(record.value or b"" for record in committed(servers, "copies")) == [b"1.50", b"42.00"]
    receipts = {record.key: record.value for record in committed(servers, "receipts")}
    assert receipts == {b"7": b"charged 42.00", b"8": b"charged 1.50"}
    assert committed(servers, "orders-dead") == []
    assert names["counts"] == {Settled.CANCELLED: 1}
