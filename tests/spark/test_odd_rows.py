"""Odd rows on a real Spark: what is wrong with one ends as its own failure, or as a sentence that names it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import VariantVal

from headway import Context, Retries
from headway.dead_letters import PREFIX
from headway.spark import InputRow, Output, outputs, parallel_map
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ONCE = Retries(max_attempts=1)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMPS = {
    "milliseconds": int(NOW.timestamp() * 1_000),
    "microseconds": int(NOW.timestamp() * 1_000_000),
    "nanoseconds": int(NOW.timestamp() * 1_000_000_000),
    "the largest": 2**63 - 1,
    "the last": 253_402_300_799_999,
    "one more": 253_402_300_800_000,
}


def write(frame: DataFrame, orders: "LevelTopics", **options: str) -> None:
    writer = frame.write.format("headway").mode("append")
    writer.options(**{"kafka.bootstrap.servers": orders.servers, **options}).save()


def set_on_topics(orders: "LevelTopics", name: str, value: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": orders.servers})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ResourceType.TOPIC, each, incremental_configs=[entry]) for each in orders.kafka_topics]
    for future in admin.incremental_alter_configs(resources).values():
        future.result(30)


def told_of(record: Any) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value.decode() for name, value in record.headers if name.startswith(PREFIX)}


@pytest.mark.slow
def test_a_record_whose_time_spark_does_not_have_has_none_and_is_read_and_handled_as_any_other(
    spark: SparkSession, orders: "LevelTopics", micro_batches: type["MicroBatches"], tmp_path: Path
) -> None:
    set_on_topics(orders, "message.timestamp.after.max.ms", str(2**63 - 1))  # as before Kafka 4
    for number, stamp in enumerate(STAMPS.values()):
        orders.send(0, [number], partition=0, timestamp=stamp)

    read = spark.read.format("headway").options(**orders.options, splitPartitions="false").load()
    times = {int(row.value): row.at for row in read.selectExpr("value", "unix_millis(timestamp) AS at").collect()}
    assert times == dict(enumerate([STAMPS["milliseconds"], None, None, None, STAMPS["the last"], None]))

    into = micro_batches()
    stream = spark.readStream.format("headway").options(**orders.options, startingOffsets="earliest").load()
    writer = stream.where("value <> '4'").writeStream.foreachBatch(into)  # Python has that time, in UTC alone
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert into.all_values() == [0, 1, 2, 3, 5]
    assert [row.timestamp for row in into.rows[0]][1:] == [None] * 4

    async def fail(row: InputRow, context: Context) -> int:
        raise ValueError(str(row.timestamp))

    outcomes = parallel_map(read, fail, "int", key="key", retries=ONCE)
    write(outputs(outcomes, dead_letter_topic=f"{orders.topic}-2"), orders)
    letters = {record.number: told_of(record) for record in committed(orders.servers, f"{orders.topic}-2")}
    assert letters.keys() == set(range(6))
    assert letters[0]["timestamp"] == str(STAMPS["milliseconds"])
    assert "timestamp" not in letters[2]


HEADERS = "headers array<struct<key: string, value: binary>>"


def test_headers_that_are_null_are_none_and_one_without_a_name_is_a_sentence_that_names_its_row(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    topic = f"{orders.topic}-0"
    schema = f"value string, {HEADERS}, identity string"
    rows = [("1", [None, ("a", b"1"), ("a", None), None], "one"), ("2", [None], "two"), ("3", None, "three")]
    write(spark.createDataFrame(rows, schema), orders, topic=topic)
    assert {record.number: record.headers for record in committed(orders.servers, topic)} == {
        1: [("a", b"1"), ("a", None)],
        2: None,
        3: None,
    }

    odd = spark.createDataFrame([("4", [("a", b"1")], "four"), ("5", [(None, b"1")], "five")], schema)
    with pytest.raises(PySparkException, match="The row whose identity is 'five' has a header whose name is null") as e:
        write(odd, orders, topic=topic)
    assert "Traceback" not in str(e.value)
    with pytest.raises(PySparkException, match=r"Row \d of its task has a header whose name is null"):
        write(odd.drop("identity"), orders, topic=topic, delivery="at_least_once")
    assert {record.number for record in committed(orders.servers, topic)} <= {1, 2, 3, 4}


@pytest.mark.slow
def test_a_value_that_is_too_large_is_a_sentence_that_names_its_row(spark: SparkSession, orders: "LevelTopics") -> None:
    sizes = spark.range(0, 5, 1, 1).selectExpr(
        "repeat('x', if(id = 3, 1100000, 10)) AS value", "concat('order ', id) AS identity"
    )
    settings = {"kafka.message.max.bytes": "2000000", "kafka.batch.size": "3000000"}
    with pytest.raises(PySparkException, match=r"The row whose identity is 'order 3' was refused: .*too large"):
        write(sizes, orders, topic=f"{orders.topic}-0")
    with pytest.raises(PySparkException, match="The longest value for this topic has 1100000 bytes: Row 4 of its task"):
        write(sizes.drop("identity"), orders, topic=f"{orders.topic}-0", **settings)
    assert committed(orders.servers, f"{orders.topic}-0") == []


@pytest.mark.slow
def test_a_row_without_a_key_is_named_where_its_topic_is_compacted(spark: SparkSession, orders: "LevelTopics") -> None:
    set_on_topics(orders, "cleanup.policy", "compact")
    rows = [("1", "k", "one"), ("2", None, "two")]
    frame = spark.createDataFrame(rows, "value string, key string, identity string").coalesce(1)
    with pytest.raises(PySparkException, match=r"The row whose identity is 'two' has no key, but a compacted topic"):
        write(frame, orders, topic=f"{orders.topic}-0")


@pytest.mark.slow
def test_a_due_time_beyond_all_calendars_is_the_last_that_there_is(spark: SparkSession, orders: "LevelTopics") -> None:
    name = f"{orders.topic[-20:]}"
    frame = spark.range(0, 4, 1, 1).selectExpr(
        "cast(id AS string) AS value",
        "CASE id WHEN 0 THEN timestamp_micros(9223372036854775807) WHEN 1 THEN timestamp_micros(-9223372036854775808) "
        "WHEN 2 THEN null ELSE timestamp_seconds(-1) END AS due",
    )
    write(frame, orders, topic=f"{orders.topic}-0", schedulerName=name)
    assert [record.number for record in committed(orders.servers, f"{orders.topic}-0")] == [2]


@pytest.mark.slow
def test_a_row_whose_output_cannot_be_written_is_a_dead_letter(spark: SparkSession, orders: "LevelTopics") -> None:
    async def answer(row: InputRow, context: Context) -> Any:
        if row.n == 5:
            raise ValueError("bad luck")
        levels = {0: "1", 1: None, 2: "-1", 3: "99999999999999999999", 4: "1.x"}
        headers = {6: [(None, b"v")], 7: [("a\0b", b"v")], 8: [None, ("ok", b"v")]}.get(row.n, [])
        return levels.get(row.n, "1"), headers

    frame = spark.range(0, 9, 1, 2).selectExpr("cast(id AS int) AS n", "cast(id AS string) AS value")
    kind = "struct<level: string, headers: array<struct<key: string, value: binary>>>"
    outcomes = parallel_map(frame, answer, kind, key=None, retries=ONCE)
    records = outputs(
        outcomes,
        Output(orders.topic, value="value", level="result.level", headers="result.headers"),
        Output(f"{orders.topic}-0", value="value"),
        dead_letter_topic=f"{orders.topic}-2",
        identity="value",
    )
    write(records, orders)

    stored = [committed(orders.servers, topic) for topic in orders.kafka_topics]
    assert [sorted(record.number for record in records) for records in stored] == [
        [0, 8],
        [0, 8],
        [1, 2, 3, 4, 5, 6, 7],
    ]
    letters = {record.number: told_of(record) for record in stored[2]}
    assert {letters[number]["message"] for number in (1, 3, 4)} == {
        f"its output to {orders.topic} has no level: the column is null or not a whole number"
    }
    assert letters[2]["message"] == f"its output to {orders.topic} has the level -1"
    assert {letters[number]["message"] for number in (6, 7)} == {
        f"a header of its output to {orders.topic} has no name"
    }
    assert {letters[number]["reason"] for number in (1, 7)} == {"its output cannot be written"}
    assert letters[5]["message"] == "bad luck"
    assert dict(stored[1][1].headers or []) == {"ok": b"v"} or dict(stored[1][0].headers or []) == {"ok": b"v"}


@pytest.mark.slow
def test_a_plain_handler_that_blocks_fails_its_row_and_the_micro_batch_ends(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    orders.send(0, range(300), partition=0)

    def call(row: InputRow, context: Context) -> int:
        if row.value == b"7":
            time.sleep(10_000)  # in one call of C, which nobody interrupts
        return int(row.value)

    options = {**orders.options, "startingOffsets": "earliest"}
    stream = spark.readStream.format("headway").options(**options).load()
    outcomes = parallel_map(stream, call, "int", key=None, time_limit=1, retries=ONCE)
    writer = outputs(outcomes, dead_letter_topic=f"{orders.topic}-2").writeStream.format("headway")
    writer = writer.option("kafka.bootstrap.servers", orders.servers).option("checkpointLocation", str(tmp_path / "c"))
    began = time.monotonic()
    writer.trigger(availableNow=True).start().awaitTermination()

    [letter] = committed(orders.servers, f"{orders.topic}-2")
    assert letter.number == 7
    assert "could not be interrupted" in told_of(letter)["message"]
    assert time.monotonic() - began < 90


def test_results_of_every_shape_are_in_one_column(spark: SparkSession) -> None:
    async def answer(row: InputRow, context: Context) -> Any:
        await asyncio.sleep(0)
        parsed = VariantVal.parseJson('{"a": 1}')
        shapes: list[Any] = [
            {"n": row.n, "about": parsed},
            (row.n, parsed),
            {b"n": row.n, b"about": parsed},
            (row.n,),
            None,
            {"n": float("nan"), "about": parsed},
            {"n": 2**31, "about": parsed},
        ]
        return shapes[row.n % len(shapes)]

    frame = spark.range(0, 70, 1, 1).selectExpr("cast(id AS int) AS n")
    rows = parallel_map(frame, answer, "struct<n: int, about: variant>", key=None, retries=ONCE).collect()
    by_number = {row.n: (row.outcome, row.result and row.result.n) for row in rows}
    assert len(rows) == 70
    assert {by_number[n] for n in range(70) if n % 7 == 4} == {("ok", None)}
    assert {by_number[n] for n in range(70) if n % 7 in (2, 3, 5, 6)} == {("failed", None)}
    assert all(by_number[n] == ("ok", n) for n in range(70) if n % 7 in (0, 1))


@pytest.mark.quick("decimal(5,2)-", "timestamp-", "string-")
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("decimal(5,2)", ["__import__('decimal').Decimal(10) ** 9", "float('nan')", "10 ** 400"]),
        ("timestamp", ["datetime.max", "datetime(1, 1, 1, tzinfo=UTC) - timedelta(0)", "10 ** 400", "float('nan')"]),
        ("date", ["datetime.max.date()", "10 ** 10"]),
        ("double", ["10 ** 400", "float('nan')", "'x'", "__import__('numpy').float32('inf')"]),
        ("interval day to second", ["timedelta.max", "1.5"]),
        ("string", ["'\\udce9'", "'a\\0b'", "b'\\xff'"]),
        ("tinyint", ["300", "True", "__import__('numpy').int64(3)"]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_whatever_a_handler_returns_is_its_rows_outcome(spark: SparkSession, kind: str, values: list[str]) -> None:
    names = {"datetime": datetime, "UTC": UTC, "timedelta": timedelta}

    async def answer(row: InputRow, context: Context) -> Any:
        return eval(values[row.n], names) if row.n < len(values) else None  # noqa: S307

    frame = spark.range(0, len(values) + 1, 1, 1).selectExpr("cast(id AS int) AS n")
    stage = parallel_map(frame, answer, kind, key=None, retries=ONCE)
    rows = stage.select("n", "outcome", "error", sf.col("result").cast("string").alias("text")).collect()
    assert sorted(row.n for row in rows) == list(range(len(values) + 1))
    assert {row.outcome for row in rows if row.n == len(values)} == {"ok"}
    assert all(row.error.message for row in rows if row.outcome == "failed")
