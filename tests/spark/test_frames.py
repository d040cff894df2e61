"""Frames of records for tests of stages, without a Kafka."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headway.errors import ConfigError
from headway.spark import InputRow, Output, outputs, parallel_map
from headway.testing import frame, record

pytestmark = pytest.mark.spark


def charge(row: InputRow) -> str:
    if row.value == b"bad":
        raise ValueError("bad")
    return f"charged {row.value.decode()}"


def test_records_go_through_a_stage_and_its_outputs_as_those_that_were_read(spark: SparkSession) -> None:
    records = [record(value, "a", topic="orders", level=2, headers=[("n", b"1")]) for value in ("book", "bad", "pen")]
    read = frame(spark, records)
    outcomes = parallel_map(read, charge, "string", key="key", later=True)
    made = outputs(outcomes, Output("receipts", key="key", value="result"), dead_letter_topic="orders-dead").collect()
    assert sorted((row.topic, row.value, row.identity) for row in made) == [
        ("orders-dead", b"bad", "orders/2/0/1"),
        ("receipts", b"charged book", "orders/2/0/0"),
        ("receipts", b"charged pen", "orders/2/0/2"),
    ]
    [letter] = [row for row in made if row.topic == "orders-dead"]
    told = {header.key: header.value for header in letter.headers}
    assert (told["n"], told["headway.error.topic"]) == (b"1", b"orders-2")


def test_a_frame_is_read_with_levels_or_without(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="Some of the records have a level, but others do not"):
        frame(spark, [record("a", topic="orders"), record("b", topic="orders", level=0)])
    assert frame(spark, []).columns[:3] == ["key", "value", "topic"]


@pytest.mark.slow
def test_the_tests_of_the_page_pass(spark: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    programs = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "headway.spark" in each]
    names: dict[str, Any] = {}
    for program in programs:
        text = program.replace("from charging import charge\n", "")
        exec(compile(text, "testing.md", "exec"), names)  # noqa: S102 - our own text
    names["test_an_order_is_charged"]()
    names["test_an_order_of_nothing_is_a_dead_letter"](spark)
