"""Handlers of `parallel_map` that get Arrow and return Arrow, on a real Spark."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from headway import BatchError, Batches, Context, FatalError, Retries
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError
from headway.spark import parallel_map

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

RETRIES = Retries(fixed_backoff(0.001), max_attempts=2)
IN_ARROW: dict[str, Any] = {"batches": Batches(50, linger=0.1), "retries": RETRIES}


def embed(batch: pa.RecordBatch, contexts: Sequence[Context]) -> pa.Table:
    """Return two numbers and a text of each row; the first attempt fails, and 13 is bad luck."""
    assert batch.schema.names == ["n", "at", "tags"]
    assert batch.schema.field("at").type == pa.timestamp("us", "UTC")
    if contexts[0].attempt == 1:
        raise ConnectionError("not yet")
    numbers = batch.column("n")
    if wrong := {place: FatalError("bad luck") for place, n in enumerate(numbers.to_pylist()) if n == 13}:
        raise BatchError(wrong)
    pairs = pa.FixedSizeListArray.from_arrays(pc.cast(pc.multiply(numbers.take(_twice(batch)), 0.5), pa.float64()), 2)
    first = pc.list_element(batch.column("tags"), 0)
    return pa.table({"first": first, "pair": pairs})


def _twice(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([place for place in range(batch.num_rows) for _ in range(2)], pa.int32())


def test_a_handler_gets_arrow_and_returns_arrow(spark: SparkSession) -> None:
    rows = spark.range(0, 40, 1, 2).selectExpr(
        "cast(id AS int) AS n", "timestamp_seconds(id) AS at", "array(cast(id AS string)) AS tags", "id % 4 AS key"
    )
    frame = parallel_map(
        rows, embed, "pair array<float>, first string", key="key", arrow_columns=["n", "at", "tags"], **IN_ARROW
    )
    came = {row.n: row for row in frame.collect()}
    assert len(came) == 40
    assert {n for n, row in came.items() if row.outcome != "ok"} == {13}
    assert (came[13].error.message, came[13].attempts) == ("bad luck", 2)
    # Those beside it in its batch are done, without a result.
    assert {n: row.result.asDict() for n, row in came.items() if n % 4 != 1} == {
        n: {"pair": [n / 2, n / 2], "first": str(n)} for n in range(40) if n % 4 != 1
    }


@pytest.mark.slow
def test_a_stream_keeps_the_order_of_each_key(spark: SparkSession, orders: "LevelTopics", tmp_path: Path) -> None:
    for number in range(20):
        orders.send(0, range(number * 30, number * 30 + 30), key=str(number % 7).encode(), partition=number % 7 % 2)
    log = tmp_path / "calls"

    async def note(batch: pa.RecordBatch) -> pa.Array:
        with log.open("a") as file:
            for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                file.write(f"{key.decode()} {value.decode()}\n")
        return pc.cast(batch.column("value"), pa.string())

    options = {**orders.options, "startingOffsets": "earliest", "maxRecordsPerTrigger": "210"}
    read = spark.readStream.format("headway").options(**options).load()
    frame = parallel_map(read, note, "string", key="key", arrow_columns=["key", "value"], **IN_ARROW)
    query = frame.writeStream.format("memory").queryName("in_arrow").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()

    same = spark.table("in_arrow").where("outcome = 'ok' AND result = cast(value AS string)")
    assert same.count() == 600
    calls: dict[str, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        key, value = line.split()
        calls[key].append(int(value))
    assert sum(map(len, calls.values())) == 600
    assert all(numbers == sorted(numbers) for numbers in calls.values())


@pytest.mark.slow
def test_what_a_handler_returns_never_fails_the_task(spark: SparkSession) -> None:
    def odd(batch: pa.RecordBatch) -> Any:
        [number] = batch.column("id").to_pylist()
        return [
            pa.array(["x"]),
            pa.array([1, 2]),
            [1],
            None,
            pa.table({"a": [1], "b": [2]}),
            pa.array([2**40]),
            pa.nulls(1),
            pa.array([7], pa.uint8()),
        ][number]

    rows = spark.range(0, 8, 1, 1)
    frame = parallel_map(rows, odd, "int", key="id", arrow_columns="id", batches=Batches(10))
    came = {row.id: row for row in frame.collect()}
    assert {n: row.outcome for n, row in came.items()} == {**dict.fromkeys(range(6), "failed"), 6: "ok", 7: "ok"}
    assert (came[6].result, came[7].result) == (None, 7)
    assert came[0].error.message == "The handler returned a value that does not fit int: it is string"
    assert (
        came[1].error.message == "The handler returned 2 results for a batch of 1 rows. Return one result for each row."
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"arrow_columns": ["vale"]}, r"has no column `vale` for the arrow_columns\. Did you mean value\?"),
        ({"arrow_columns": []}, r"arrow_columns is \[\]; it must name one or more columns"),
        ({"arrow_columns": 1}, r"arrow_columns is 1; it must name one or more columns"),
        ({"arrow_columns": [1]}, r"arrow_columns is \[1\]; it must name one or more columns"),
        ({"arrow_columns": ["value", "value"]}, "arrow_columns names value twice"),
        ({"arrow_columns": "value", "batches": None}, "arrow_columns needs batches, but batches is not given"),
    ],
)
def test_a_wrong_option_is_a_sentence_before_anything_runs(
    spark: SparkSession, given: dict[str, Any], words: str
) -> None:
    frame = spark.range(1).selectExpr("id AS value")
    with pytest.raises(ConfigError, match=words):
        parallel_map(frame, lambda batch: batch, "int", **{"key": None, **IN_ARROW, **given})
