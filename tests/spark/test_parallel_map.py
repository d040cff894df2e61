"""`parallel_map` on a real Spark: batch and streaming DataFrames, and dead letters through the sink."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from headway import Context
from headway.core.retry import Retries, fixed
from headway.errors import ConfigError
from headway.letters import PREFIX
from headway.spark import InputRow, dead_letters, parallel_map
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


def stage(frame: DataFrame) -> DataFrame:
    retries = Retries(fixed(0.001), max_attempts=2)
    return parallel_map(frame, number_of, "number int, attempt int", key="key", retries=retries)


def test_a_batch_has_an_outcome_for_each_row_and_dead_letters_for_those_that_are_not_ok(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    orders.send(0, range(10), partition=0, key=b"even", headers=[("kind", b"new")])
    orders.send(1, range(10, 20), partition=0, key=b"odd")
    read = spark.read.format("headway").options(**orders.options, includeHeaders="true").load()
    outcomes = stage(read).persist()
    rows = {int(row.value): row for row in outcomes.collect()}

    assert {number: row.outcome for number, row in rows.items()} == {
        **dict.fromkeys(range(13), "ok"),
        13: "failed",
        **dict.fromkeys(range(14, 20), "parked"),
    }
    assert rows[5].result == Row(number=5, attempt=1)
    assert (rows[13].attempts, rows[13].error.message) == (2, "bad luck")

    letters = dead_letters(outcomes)
    letters.write.format("headway").mode("append").option("kafka.bootstrap.servers", orders.servers).option(
        "topic", f"{orders.topic}-2"
    ).save()
    outcomes.unpersist()
    by_number = {record.number: record for record in committed(orders.servers, f"{orders.topic}-2")}
    assert by_number.keys() == set(range(13, 20))
    told = {name.removeprefix(PREFIX): value.decode() for name, value in by_number[13].headers}
    assert told.pop("last.time").isdecimal()
    assert told.pop("timestamp").isdecimal()
    assert told == {
        "exception": "builtins.ValueError",
        "message": "bad luck",
        "reason": "attempt 2 of 2 failed",
        "attempts": "2",
        "topic": f"{orders.topic}-1",
        "partition": "0",
        "offset": "3",
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
    with pytest.raises(ConfigError, match=r"no column kye for the key. Did you mean key\?"):
        parallel_map(frame, number_of, "int", key="kye")
    with pytest.raises(ConfigError, match="keys is array<bigint>, which is no key"):
        parallel_map(frame, number_of, "int", key="keys")
    with pytest.raises(ConfigError, match="concurrency is 0; it must be at least 1"):
        parallel_map(frame, number_of, "int", key="key", concurrency=0)
    with pytest.raises(ConfigError, match="has a column result already"):
        parallel_map(frame.withColumnRenamed("keys", "result"), number_of, "int", key="key")
