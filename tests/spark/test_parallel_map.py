"""`parallel_map` on a real Spark: batch and streaming DataFrames, and dead letters through the sink."""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import VariantVal

from headway import Context
from headway.core.retry import Retries, fixed_backoff
from headway.dead_letters import PREFIX
from headway.errors import ConfigError
from headway.spark import InputRow, Output, outputs, parallel_map
from tests.spark.cluster import Driver, standalone_cluster
from tests.spark.programs import charging
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


async def number_of(row: InputRow, context: Context) -> tuple[int, int]:
    """The row's value as a number, and its attempt; 13 is bad luck."""
    number = int(row.value)
    if number == 13:
        raise ValueError("bad luck")
    return number, context.attempt


def stage(frame: DataFrame, *, park_behind_failed: bool = False) -> DataFrame:
    retries = Retries(fixed_backoff(0.001), max_attempts=2)
    kind = "number int, attempt int"
    return parallel_map(frame, number_of, kind, key="key", retries=retries, park_behind_failed=park_behind_failed)


def test_a_batch_has_an_outcome_for_each_row_and_dead_letters_for_those_that_are_not_ok(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    orders.send(0, range(10), partition=0, key=b"even", headers=[("kind", b"new")])
    orders.send(1, range(10, 20), partition=0, key=b"odd")
    read = spark.read.format("headway").options(**orders.options, includeHeaders="true", splitPartitions="false").load()
    outcomes = stage(read, park_behind_failed=True).persist()
    rows = {int(row.value): row for row in outcomes.collect()}

    assert {number: row.outcome for number, row in rows.items()} == {
        **dict.fromkeys(range(13), "ok"),
        13: "failed",
        **dict.fromkeys(range(14, 20), "parked"),
    }
    assert rows[5].result == Row(number=5, attempt=1)
    assert (rows[13].attempts, rows[13].error.message) == (2, "bad luck")

    letters = outputs(outcomes, dead_letter_topic=f"{orders.topic}-2")
    letters.write.format("headway").mode("append").option("kafka.bootstrap.servers", orders.servers).save()
    outcomes.unpersist()
    by_number = {record.number: record for record in committed(orders.servers, f"{orders.topic}-2")}
    assert by_number.keys() == set(range(13, 20))
    told = {name.removeprefix(PREFIX): value.decode() for name, value in by_number[13].headers}
    assert int(told.pop("first.time")) <= int(told.pop("last.time"))
    history = {"topic": f"{orders.topic}-2", "origin": [f"{orders.topic}-1", 0, 3]}
    assert json.loads(told.pop("headway.history")) == history
    assert told.pop("timestamp").isdecimal()
    assert told == {
        "exception": "builtins.ValueError",
        "message": "bad luck",
        "reason": "attempt 2 of 2 failed",
        "attempts": "2",
        "topic": f"{orders.topic}-1",
        "partition": "0",
        "offset": "3",
        "first.exception": "builtins.ValueError",
        "first.message": "bad luck",
    }
    assert by_number[13].key == b"odd"


def test_a_stream_keeps_the_order_of_each_key_within_and_across_micro_batches(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    for number in range(20):
        orders.send(0, range(number * 30, number * 30 + 30), key=str(number % 7).encode(), partition=number % 7 % 2)
    log = tmp_path / "calls"

    async def note(row: InputRow, context: Context) -> int:
        with log.open("a") as file:
            file.write(f"{row.key.decode()} {row.value.decode()}\n")
        return 0

    options = {**orders.options, "startingOffsets": "earliest", "maxRecordsPerTrigger": "210"}
    frame = parallel_map(spark.readStream.format("headway").options(**options).load(), note, "int", key="key")
    query = frame.writeStream.format("memory").queryName("outcomes").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()

    assert spark.table("outcomes").where("outcome = 'ok'").count() == 600
    calls: dict[str, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        key, value = line.split()
        calls[key].append(int(value))
    assert sum(map(len, calls.values())) == 600
    assert all(numbers == sorted(numbers) for numbers in calls.values())


@pytest.mark.quick("True")
@pytest.mark.parametrize("park_behind_failed", [False, True])
def test_a_failed_row_keeps_no_other_waiting_unless_the_rows_of_its_key_are_to_be_parked(
    spark: SparkSession, park_behind_failed: bool
) -> None:
    places = [("em", 0, b"7", 13), *(("em", 0, b"7", n) for n in range(9)), *(("re", 0, b"7", n) for n in range(10))]
    frame = spark.createDataFrame(places, "topic string, partition int, key binary, value int").coalesce(1)
    rows = stage(frame, park_behind_failed=park_behind_failed).collect()
    others = "parked" if park_behind_failed else "ok"
    assert Counter((row.topic, row.outcome) for row in rows) == {
        ("em", "failed"): 1,
        ("em", others): 9,
        ("re", "ok"): 10,
    }


class Meeting:
    """A handler that returns how many of its calls ran at a time; it waits for `others` to have begun."""

    def __init__(self, others: int) -> None:
        self.others = others
        self.running = 0
        self.met = asyncio.Event()

    async def __call__(self, row: InputRow) -> int:
        self.running += 1
        if self.running == self.others:
            self.met.set()
        if self.others > 1:
            await asyncio.wait_for(self.met.wait(), 60)
        await asyncio.sleep(0)
        running = self.running
        self.running -= 0 if self.others > 1 else 1
        return running


@pytest.mark.slow
def test_the_key_of_records_counts_within_their_partition_and_any_other_column_in_the_whole_task(
    spark: SparkSession,
) -> None:
    places = [("orders", 0, 1), ("orders", 2, 1), ("orders", 2, 0), ("returns", 2, 0)]
    frame = spark.createDataFrame(places, "topic string, level int, partition int").coalesce(1)
    keys = frame.selectExpr("*", "X'07' AS key", "X'07' AS customer")
    of_records = parallel_map(keys, Meeting(4), "int", key="key").collect()
    assert [row.result for row in of_records] == [4] * 4
    of_customers = parallel_map(keys, Meeting(1), "int", key="customer").collect()
    assert [row.result for row in of_customers] == [1] * 4


def test_rows_start_by_their_priority_and_those_that_are_too_late_do_not_start(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    now = int(time.time() * 1000)
    orders.send(0, range(20), partition=0, timestamp=now)
    orders.send(1, range(20, 40), partition=0, timestamp=now - 7_200_000)
    read = spark.read.format("headway").options(**orders.options).load().coalesce(1)
    number = sf.col("value").cast("string").cast("int")
    urgency = sf.when(number % 5 != 0, number)  # else null, which is the lowest
    outcomes = parallel_map(
        read.withColumn("urgency", urgency),
        number_of,
        "number int, attempt int",
        key=None,
        max_concurrency=1,
        priority="urgency",
        expires_after=3_600,
        retries=Retries(max_attempts=1),
    )
    rows = {int(row.value): row for row in outcomes.collect()}
    assert {number for number, row in rows.items() if row.outcome == "expired"} == set(range(20, 40))
    assert {row.attempts for number, row in rows.items() if number >= 20} == {0}
    started = sorted(range(20), key=lambda number: rows[number].started)
    assert started == [*(number for number in reversed(range(20)) if number % 5), 0, 5, 10, 15]


@pytest.mark.slow
def test_the_handler_and_its_event_loop_stay_with_the_python_worker(spark: SparkSession) -> None:
    class Counting:
        """A handler that counts its calls, as one keeps a client."""

        def __init__(self) -> None:
            self.calls = 0

        async def __call__(self, row: InputRow, context: Context) -> int:
            self.calls += 1
            return self.calls

    frame = spark.range(0, 1, 1, 1)
    counted = parallel_map(frame, Counting(), "int", key=None)
    seen = [row.result for _ in range(6) for row in counted.collect()]
    assert max(seen) > 1


def test_a_mistake_is_one_sentence_before_anything_runs(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("id AS key", "array(id) AS keys")
    with pytest.raises(ConfigError, match=r"no column `kye` for the key. Did you mean key\?"):
        parallel_map(frame, number_of, "int", key="kye")
    with pytest.raises(ConfigError, match="`keys` is array<bigint>, which cannot be a key"):
        parallel_map(frame, number_of, "int", key="keys")
    with pytest.raises(ConfigError, match="`parsed` is variant, which cannot be a key"):
        parallel_map(frame.selectExpr("parse_json('1') AS parsed"), number_of, "int", key="parsed")
    with pytest.raises(ConfigError, match="The schema is interval year to month, for which Arrow has no type"):
        parallel_map(frame, number_of, "interval year to month", key="key")
    with pytest.raises(ConfigError, match="max_concurrency is 0; it must be at least 1"):
        parallel_map(frame, number_of, "int", key="key", max_concurrency=0)
    with pytest.raises(ConfigError, match="already has a column `result`"):
        parallel_map(frame.withColumnRenamed("keys", "result"), number_of, "int", key="key")


def test_a_row_that_is_ok_becomes_its_outputs_and_another_a_dead_letter(spark: SparkSession) -> None:
    outcomes = stage(
        spark.createDataFrame([("a", "2", 1), ("a", "70", 0), ("b", "13", 1)], "key string, value string, n int")
    )
    due = sf.timestamp_seconds("result.number")
    records = outputs(
        outcomes,
        Output("receipts", key="key", value=sf.to_json("result"), level="n"),
        Output("reminders", value="value", due=due, where="result.number > 50"),
        dead_letter_topic="dead",
    )
    rows = {(row.topic, row.value): row for row in records.selectExpr("*", "unix_millis(due) AS at").collect()}

    assert {place: (row.key, row.at) for place, row in rows.items()} == {
        ("receipts-1", b'{"number":2,"attempt":1}'): (b"a", None),
        ("receipts-0", b'{"number":70,"attempt":1}'): (b"a", None),
        ("reminders", b"70"): (None, 70_000),
        ("dead", b"13"): (b"b", None),
    }
    told = {header.key.removeprefix(PREFIX): header.value for header in rows["dead", b"13"].headers}
    assert (told["message"], told["attempts"]) == (b"bad luck", b"2")


def test_what_makes_no_record_is_one_sentence(spark: SparkSession) -> None:
    outcomes = stage(spark.createDataFrame([("a", "2")], "key string, value string"))
    with pytest.raises(ConfigError, match="value of the output to receipts is int; it must be binary or a string"):
        outputs(outcomes, Output("receipts", value="result.number"), dead_letter_topic="dead")
    with pytest.raises(ConfigError, match="has no `outcome` column, which parallel_map adds"):
        outputs(outcomes.drop("outcome"), dead_letter_topic="dead")


FIRST, WAITING = range(1, 601), range(1_001, 1_601)  # together more than Spark reads in one task


def came_of_rows(orders: "LevelTopics") -> tuple[list[int], list[int]]:
    """The receipts and the dead letters of `programs/charging.py`."""
    receipts, dead = (committed(orders.servers, topic) for topic in orders.kafka_topics[1:])
    return sorted(record.number for record in receipts), sorted(record.number for record in dead)


def send_and_await_the_first_task(orders: "LevelTopics", directory: Path, start: Callable[[], Any]) -> Any:
    """Start the query, and wait until its first task has committed and its second has not."""
    for partition, numbers in enumerate((FIRST, WAITING)):
        orders.send(0, numbers, partition=partition)
    (directory / "first").touch()
    started, deadline = start(), time.monotonic() + 240
    while sum(map(len, came_of_rows(orders))) < 2 * 300 + 300:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return started


def assert_each_row_has_one_answer(orders: "LevelTopics") -> None:
    receipts, dead = came_of_rows(orders)
    charged = [number for number in receipts if number > 0]
    assert sorted(charged + dead) == [*FIRST, *WAITING]
    assert receipts == sorted([*charged, *(-number for number in charged)])
    assert [number for number in dead if number in FIRST] == list(range(2, 601, 2))


@pytest.mark.slow
def test_what_comes_of_a_row_is_there_once_though_handlers_answer_otherwise_after_a_restart(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    def start() -> StreamingQuery:
        return charging.start(spark, orders.servers, orders.topic, tmp_path)

    send_and_await_the_first_task(orders, tmp_path, start).stop()
    (tmp_path / "first").unlink()
    start().awaitTermination()

    assert_each_row_has_one_answer(orders)


@pytest.mark.slow
def test_what_comes_of_a_row_is_there_once_though_handlers_answer_otherwise_after_the_driver_was_killed(
    orders: "LevelTopics", tmp_path: Path
) -> None:
    with standalone_cluster(tmp_path) as cluster:

        def start() -> Driver:
            return cluster.run("charging", orders.servers, orders.topic, str(tmp_path))

        send_and_await_the_first_task(orders, tmp_path, start).kill()
        (tmp_path / "first").unlink()
        start().wait(240)

    assert_each_row_has_one_answer(orders)


def test_values_are_those_of_udfs_and_a_time_without_a_zone_is_one_of_the_session(spark: SparkSession) -> None:
    def read_and_tell_noon(row: InputRow) -> Any:
        return type(row.counts).__name__, row.about.toPython()["a"], row.inner.n, datetime(2026, 1, 1, 12)

    counts, about, inner = "map('a', 1) AS counts", "parse_json('{\"a\": 2}') AS about", "named_struct('n', 3) AS inner"
    frame = spark.range(1).selectExpr(counts, about, inner)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        kind = "counts string, a int, n int, noon timestamp"
        rows = parallel_map(frame, read_and_tell_noon, kind, key=None).selectExpr(
            "result.counts", "result.a", "result.n", "cast(result.noon AS string) AS noon", "error.message"
        )
        [row] = rows.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert row.asDict() == {"counts": "dict", "a": 2, "n": 3, "noon": "2026-01-01 12:00:00", "message": None}


def test_no_row_fails_the_task_whatever_its_values_and_its_result_are(spark: SparkSession) -> None:
    async def answer(row: InputRow, context: Context) -> Any:
        _ = row.at
        return row.n, {0: None, 1: {"a": 1}, 2: VariantVal.parseJson('{"a": 1}')}.get(row.n)

    odd = spark.range(0, 4, 1, 1).selectExpr(
        "cast(id AS int) AS n",
        "cast(if(id = 3, X'FF', cast(id AS string)) AS string) AS key",
        "timestamp_seconds(if(id = 3, 900000000000, id)) AS at",
    )
    kind = "struct<n: int NOT NULL, about: variant NOT NULL>"
    retries = Retries(max_attempts=1)
    spark.conf.set("spark.sql.session.timeZone", "GMT+02:00")
    try:
        frame = parallel_map(odd, answer, kind, key="key", retries=retries)
        rows = frame.selectExpr("n", "outcome", "to_json(result.about) AS about", "error.message AS message").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    outcomes = {row.n: row for row in rows}
    assert {n: (row.outcome, row.about) for n, row in outcomes.items()} == {
        0: ("failed", None),
        1: ("failed", None),
        2: ("ok", '{"a":1}'),
        3: ("failed", None),
    }
    assert "about is null or missing, but the schema requires a value" in outcomes[0].message
    assert "a VARIANT must be a VariantVal" in outcomes[1].message
    assert "out of range" in outcomes[3].message
