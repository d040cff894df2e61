"""Rows of a DataFrame that are due later: to the lines with the sink's guarantees, and from there by a relay."""

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from headway import Ladder, Relay
from headway.delay.topics import TopicNames, create_topics
from headway.errors import ConfigError
from headway.kafka.admin import Admin
from headway.spark.sink.scheduled_rows import find_lines
from headway.spark.sink.writers import stream_writer
from tests.spark.stored import Stored, committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

LADDER = Ladder.exponential(0.5, 2, 3)


def write(frame: DataFrame, orders: "LevelTopics", **options: Any) -> None:
    create_topics({"bootstrap.servers": orders.servers}, orders.topic, LADDER, 2)
    writer = frame.write.format("headway").mode("append").option("kafka.bootstrap.servers", orders.servers)
    writer.options(schedulerName=orders.topic, **options).save()


def delivered(orders: "LevelTopics", level: int, count: int) -> list[Stored]:
    records: list[Stored] = []
    deadline = time.monotonic() + 30
    while len(records) < count and time.monotonic() < deadline:
        records = committed(orders.servers, f"{orders.topic}-{level}")
    return records


def in_lines(orders: "LevelTopics") -> list[Stored]:
    names = TopicNames(orders.topic)
    lines = [names.line(line) for line in (0, *LADDER.lines)]
    return [record for line in lines for record in committed(orders.servers, line)]


def test_a_row_comes_when_it_is_due_at_its_level_with_its_key_value_headers_and_partition(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    columns = "topic string, level int, key string, value string, partition int, seconds int"
    kind = "array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(
        [
            (orders.topic, 2, "a", "later", 1, 2, [("trace", b"\xff")]),
            (orders.topic, 1, "b", "soon", None, 0, None),
            (orders.topic, 0, "c", "now", None, None, None),
        ],
        f"{columns}, headers {kind}",
    )
    asked = time.time()
    frame = frame.withColumn("due", sf.timestamp_millis(sf.lit(int(asked * 1000)) + sf.col("seconds") * 1000))
    write(frame.drop("seconds"), orders)

    assert [record.value for record in committed(orders.servers, f"{orders.topic}-0")] == [b"now"]
    assert sorted(record.value or b"" for record in in_lines(orders)) == [b"later", b"soon"]
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        [soon] = delivered(orders, 1, 1)
        [later] = delivered(orders, 2, 1)
        assert time.time() >= asked + 2
    assert (soon.key, soon.value, soon.headers) == (b"b", b"soon", None)
    assert (later.key, later.value, later.partition, later.headers) == (b"a", b"later", 1, [("trace", b"\xff")])


def test_what_is_written_again_is_scheduled_once(spark: SparkSession, orders: "LevelTopics") -> None:
    frame = spark.range(0, 1000, 1, 3).select(sf.col("id").cast("string").alias("value"))
    frame = frame.withColumn("due", sf.current_timestamp() + sf.expr("INTERVAL 1 SECOND"))
    for _ in range(2):
        write(frame, orders, topic=f"{orders.topic}-0", txnAppId=orders.topic, txnVersion=1)

    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        assert sorted(record.number for record in delivered(orders, 0, 1000)) == list(range(1000))


def test_a_task_that_fails_leaves_nothing_to_fire(spark: SparkSession, orders: "LevelTopics") -> None:
    rows = [(orders.topic, 2, "fine"), (orders.topic, 7, "too high")]
    frame = spark.createDataFrame(rows, "topic string, level int, value string").coalesce(1)
    with pytest.raises(Exception, match="Kafka has no topic"):
        write(frame.withColumn("due", sf.current_timestamp() + sf.expr("INTERVAL 1 HOUR")), orders)
    assert in_lines(orders) == []


def test_lines_that_are_deleted_are_made_again_by_the_same_process(
    orders: "LevelTopics", monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": orders.servers, "topic": f"{orders.topic}-0", "schedulerName": orders.topic}
    schema = StructType().add("value", "string").add("due", "timestamp")
    admin = Admin({"bootstrap.servers": orders.servers})

    def lines() -> set[str]:
        return {topic for topic in admin.topics() if topic.startswith(f"{orders.topic}.")}

    stream_writer(schema, options)
    made = lines()
    admin.delete(made)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 10)
    monkeypatch.setattr("headway.spark.sink.writers.time", later)
    stream_writer(schema, options)
    assert lines() == made != set()


def test_a_transaction_that_could_hide_what_is_due_for_longer_than_relays_wait_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"transaction\.timeout\.ms is 300000; with a column due it must be at most 45000"
    ):
        find_lines({"bootstrap.servers": "localhost:1", "transaction.timeout.ms": "300000"}, "delay")
