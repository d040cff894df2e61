"""Several records from one row: one for each element of its result, in one transaction with all else of the row."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from headway.errors import ConfigError
from headway.spark import InputRow, Output, outputs, parallel_map
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

RESULT = "array<struct<text: string, level: int>>"


async def lines_of(row: InputRow) -> list[tuple[str, int]] | None:
    """Return a line for each letter of the value, of the level that the row says; None for `-`."""
    if row.value == "!":
        raise ValueError("no order")
    return None if row.value == "-" else [(letter, row.level) for letter in row.value]


def handled(spark: SparkSession, *values: tuple[str, int]) -> DataFrame:
    keyed = [(f"k{at}", *value) for at, value in enumerate(values)]
    rows = spark.createDataFrame(keyed, "key string, value string, level int")
    return parallel_map(rows.coalesce(1), lines_of, RESULT, key="key")


def lines(**more: Any) -> Output:
    return Output("lines", key="key", value=lambda line: line["text"], each="result", **more)


def test_each_element_becomes_a_record_in_order_beside_those_of_the_row(spark: SparkSession) -> None:
    outcomes = handled(spark, ("abc", 0), ("", 0), ("-", 0), ("!", 0), ("d", 1))
    records = outputs(
        outcomes,
        lines(level=lambda line: line["level"], where=lambda line: line["text"] != "b"),
        Output("orders-done", key="key", value="value"),
        dead_letter_topic="dead",
        identity="key",
    )
    found = [(row.topic, bytes(row.key), bytes(row.value), row.identity) for row in records.collect()]
    assert [row for row in found if row[0].startswith("lines")] == [
        ("lines-0", b"k0", b"a", "k0"),
        ("lines-0", b"k0", b"c", "k0"),
        ("lines-1", b"k4", b"d", "k4"),
    ]
    assert [row[1] for row in found if row[0] == "orders-done"] == [b"k0", b"k1", b"k2", b"k4"]
    assert [row[1] for row in found if row[0] == "dead"] == [b"k3"]


@pytest.mark.slow
def test_a_row_without_elements_counts_and_one_of_which_an_element_cannot_be_written_is_a_dead_letter_as_a_whole(
    spark: SparkSession,
) -> None:
    outcomes = handled(spark, ("abc", 0), ("", 0), ("de", -1))
    level = sf.col("level")
    records = outputs(
        outcomes,
        lines(level=lambda line: sf.when(line["text"] == "b", None).otherwise(level)),
        dead_letter_topic="dead",
        identity="key",
    ).collect()
    assert [(row.topic, row.identity, row.skip) for row in records] == [
        ("dead", "k0", False),
        (None, "k1", True),
        ("dead", "k2", False),
    ]
    messages = [
        bytes(header.value).decode()
        for row in records
        for header in row.headers or ()
        if header.key.endswith("message")
    ]
    assert messages == [
        "its output to lines has no level: the column is null or not a whole number",
        "its output to lines has the level -1",
    ]


@pytest.mark.slow
def test_all_elements_are_written_in_order_once(spark: SparkSession, orders: "LevelTopics") -> None:
    outcomes = handled(spark, *(("abcdef", 0) for _ in range(20)))
    each = Output(f"{orders.topic}-0", key="key", value=lambda line: line["text"], each="result")
    records = outputs(outcomes, each, dead_letter_topic=f"{orders.topic}-1", identity="key")
    records.write.format("headway").mode("append").option("kafka.bootstrap.servers", orders.servers).save()
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in committed(orders.servers, f"{orders.topic}-0"):
        by_key.setdefault(record.key, []).append(record.value)
    assert by_key == {f"k{at}".encode(): [letter.encode() for letter in "abcdef"] for at in range(20)}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            lambda: Output("lines", value=lambda line: line["text"]),
            "The output to lines has a function as its value, but",
        ),
        (
            lambda: Output("lines", value="value", each="value"),
            "The each= of the output to lines has the type string; it must be an",
        ),
        (lambda: Output("lines", value=lambda line: line["level"], each="result"), "is int;"),
    ],
)
def test_an_output_that_cannot_be_made_is_refused(
    spark: SparkSession, output: Callable[[], Output], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        outputs(handled(spark, ("a", 0)), output(), dead_letter_topic="dead")
    assert words in str(refused.value)


def test_a_result_is_an_array_to_spark_as_well(spark: SparkSession) -> None:
    exploded = handled(spark, ("ab", 3)).select(sf.posexplode("result"))
    assert exploded.collect() == [Row(pos=0, col=Row(text="a", level=3)), Row(pos=1, col=Row(text="b", level=3))]
