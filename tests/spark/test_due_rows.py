"""Rows of a DataFrame that are due later: to the delay topics with the sink's guarantees, and from there by a relay."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from headway import Ladder, Relay
from headway.delay.topic_names import TopicNames
from headway.delay.topics import create_topics
from headway.errors import ConfigError, KafkaError
from headway.kafka.admin import Admin
from headway.spark import Output, outputs, parallel_map
from headway.spark.sink.markers import WritePart
from headway.spark.sink.options import parse
from headway.spark.sink.scheduled_rows import find_delay_topics
from headway.spark.sink.writers import Target, stream_writer, write_part
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


def in_delay_topics(orders: "LevelTopics") -> list[Stored]:
    names = TopicNames(orders.topic)
    delay_topics = [names.delay_topic(delay_topic) for delay_topic in (0, *LADDER.delays)]
    return [record for delay_topic in delay_topics for record in committed(orders.servers, delay_topic)]


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
    assert sorted(record.value or b"" for record in in_delay_topics(orders)) == [b"later", b"soon"]
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        [soon] = delivered(orders, 1, 1)
        [later] = delivered(orders, 2, 1)
        assert time.time() >= asked + 2
    assert (soon.key, soon.value, soon.headers) == (b"b", b"soon", None)
    assert (later.key, later.value, later.partition, later.headers) == (b"a", b"later", 1, [("trace", b"\xff")])


@pytest.mark.slow
def test_what_is_written_again_is_scheduled_once(spark: SparkSession, orders: "LevelTopics") -> None:
    frame = spark.range(0, 1000, 1, 3).select(sf.col("id").cast("string").alias("value"))
    frame = frame.withColumn("due", sf.current_timestamp() + sf.expr("INTERVAL 1 SECOND"))
    for _ in range(2):
        write(frame, orders, topic=f"{orders.topic}-0", txnAppId=orders.topic, txnVersion=1)

    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        assert sorted(record.number for record in delivered(orders, 0, 1000)) == list(range(1000))


@pytest.mark.slow
def test_a_task_that_fails_leaves_nothing_to_fire(spark: SparkSession, orders: "LevelTopics") -> None:
    rows = [(orders.topic, 2, "fine"), (orders.topic, 7, "too high")]
    frame = spark.createDataFrame(rows, "topic string, level int, value string").coalesce(1)
    with pytest.raises(Exception, match="Kafka has no topic"):
        write(frame.withColumn("due", sf.current_timestamp() + sf.expr("INTERVAL 1 HOUR")), orders)
    assert in_delay_topics(orders) == []


@pytest.mark.slow
def test_lines_that_are_deleted_are_made_again_by_the_same_process(
    orders: "LevelTopics", monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": orders.servers, "topic": f"{orders.topic}-0", "schedulerName": orders.topic}
    schema = StructType().add("value", "string").add("due", "timestamp")
    admin = Admin({"bootstrap.servers": orders.servers})

    def delay_topics() -> set[str]:
        return {topic for topic in admin.topics() if topic.startswith(f"{orders.topic}.")}

    stream_writer(schema, options)
    made = delay_topics()
    admin.delete(made)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 10)
    monkeypatch.setattr("headway.spark.sink.writers.time", later)
    stream_writer(schema, options)
    assert delay_topics() == made != set()


OTHER_LADDER = Ladder((3000, 60_000))


def records_by_delay_topic(orders: "LevelTopics") -> dict[int, int]:
    delay_topics = {*LADDER.delays, *OTHER_LADDER.delays}.intersection(delay_topics_there(orders))
    return {
        delay_topic: len(committed(orders.servers, TopicNames(orders.topic).delay_topic(delay_topic)))
        for delay_topic in sorted(delay_topics)
    }


def delay_topics_there(orders: "LevelTopics") -> set[int]:
    return set(TopicNames(orders.topic).delay_topics_of(dict(Admin({"bootstrap.servers": orders.servers}).topics())))


@pytest.mark.slow
def test_a_write_that_lasts_looks_every_ten_minutes_which_lines_are_in_use(orders: "LevelTopics") -> None:
    config, names = {"bootstrap.servers": orders.servers}, TopicNames(orders.topic)
    create_topics(config, orders.topic, LADDER, 2)
    delay_topics = find_delay_topics(config, orders.topic)
    given = {"kafka.bootstrap.servers": orders.servers, "topic": f"{orders.topic}-0", "delivery": "at_least_once"}
    batch = pa.RecordBatch.from_pydict(
        {"value": ["reminder"], "due": pa.array([int((time.time() + 3600) * 1_000_000)], pa.timestamp("us", "UTC"))}
    )

    def write_after(seconds: float) -> None:
        target = Target(parse(given), delay_topics._replace(seen_at=delay_topics.seen_at - seconds))
        write_part(target, iter([batch]), WritePart(orders.topic, 0, 0))

    create_topics(config, orders.topic, OTHER_LADDER, 2)
    write_after(300)
    assert records_by_delay_topic(orders) == {500: 0, 1000: 0, 2000: 1, 3000: 0, 60_000: 0}
    Admin(config).delete([names.delay_topic(delay_topic) for delay_topic in LADDER.delays])
    write_after(600)
    assert records_by_delay_topic(orders) == {3000: 0, 60_000: 1}
    Admin(config).delete([topic for topic in Admin(config).topics() if names.owns(topic)])
    with pytest.raises(KafkaError, match=f"The scheduler {orders.topic} no longer has topics.*Start the write again"):
        write_after(600)


@pytest.mark.slow
def test_a_query_that_runs_writes_to_the_lines_that_are_in_use_now(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    create_topics({"bootstrap.servers": orders.servers}, orders.topic, LADDER, 2)
    rows = spark.readStream.format("headway").options(**orders.options, startingOffsets="earliest").load()
    in_an_hour = sf.current_timestamp() + sf.expr("INTERVAL 1 HOUR")
    writer = rows.select("value", in_an_hour.alias("due")).writeStream.format("headway")
    writer = writer.option("kafka.bootstrap.servers", orders.servers).option("checkpointLocation", str(tmp_path))
    query = writer.options(topic=f"{orders.topic}-0", schedulerName=orders.topic).start()
    try:
        orders.send(1, ["before"])
        query.processAllAvailable()
        assert records_by_delay_topic(orders) == {500: 0, 1000: 0, 2000: 1}
        create_topics({"bootstrap.servers": orders.servers}, orders.topic, OTHER_LADDER, 2)
        deadline = time.monotonic() + 90
        while not records_by_delay_topic(orders)[60_000] and time.monotonic() < deadline:
            orders.send(1, ["after"])
            query.processAllAvailable()
        assert records_by_delay_topic(orders)[60_000] == 1
    finally:
        query.stop()


def test_a_transaction_that_could_hide_what_is_due_for_longer_than_relays_wait_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"`kafka\.transaction\.timeout\.ms` is 300000; with a `due` column it must be at most 45000"
    ):
        find_delay_topics({"bootstrap.servers": "localhost:1", "transaction.timeout.ms": "300000"}, "delay")


@pytest.mark.slow
def test_an_output_expires_and_one_whose_time_the_sink_would_refuse_is_a_dead_letter(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    now = int(time.time())
    times = {"good": (0, 60), "never": (0, None), "before": (30, 20), "ancient": (0, -2 * now), "no time": (0, "?")}
    frame = spark.createDataFrame(
        [
            (name, str(now + due), None if after is None else after if after == "?" else str(now + int(after)))
            for name, (due, after) in times.items()
        ],
        "value string, due string, expires string",
    )
    rows = parallel_map(frame, lambda row: row.value, "string", key=None)

    def at(name: str) -> Column:
        return sf.coalesce(sf.timestamp_seconds(sf.expr(f"try_cast({name} AS bigint)")).cast("string"), name)

    record = Output(f"{orders.topic}-0", value="result", due=at("due"), expires=at("expires"))
    write(outputs(rows, record, dead_letter_topic=f"{orders.topic}-1"), orders)
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        found = {record.value: dict(record.headers or ()) for record in delivered(orders, 0, 2)}
    assert {value: headers.get("headway.expires") for value, headers in found.items()} == {
        b"good": b"%d" % ((now + 60) * 1000),
        b"never": None,
    }
    why = {
        letter.value: dict(letter.headers)["headway.error.message"].decode()
        for letter in committed(orders.servers, f"{orders.topic}-1")
    }
    to = f"its output to {orders.topic}-0"
    assert why == {
        b"before": f"{to} would expire before it is due",
        b"ancient": f"{to} expires {-now * 1000} ms after 1970",
        b"no time": f"{to} expires at a value that is not a time",
    }


@pytest.mark.slow
def test_a_row_that_expires_has_the_header_whether_it_is_due_now_or_later(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    now = int(time.time())
    frame = spark.createDataFrame(
        [("now", None, now + 60), ("later", now + 1, now + 90), ("never", None, None)],
        "value string, due_at long, expires_at long",
    )
    times = [sf.timestamp_seconds(f"{name}_at").alias(name) for name in ("due", "expires")]
    write(frame.select(sf.lit(f"{orders.topic}-0").alias("topic"), "value", *times), orders)
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        records = delivered(orders, 0, 3)
    found = {record.value: dict(record.headers or ()).get("headway.expires") for record in records}
    expected = {b"now": b"%d" % ((now + 60) * 1000), b"later": b"%d" % ((now + 90) * 1000), b"never": None}
    assert found == expected
