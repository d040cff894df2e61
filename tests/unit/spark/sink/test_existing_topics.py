"""Rows for topics under their own names, each with its priority."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from headway.errors import ConfigError, DeliveryError
from headway.spark.sink.existing_topics import existing_topics
from headway.spark.sink.options import check_columns, parse
from headway.spark.sink.rows import chunks

PRIORITIES = {"payments": 2, "clicks": 0}
SINK = {"kafka.bootstrap.servers": "localhost:1", "priorities": '{"payments": 2, "clicks": 0}'}


def topics(**columns: pa.Array) -> list[str]:
    found = chunks(pa.RecordBatch.from_pydict(columns), None, lambda name: 1, priorities=PRIORITIES)
    return [topic for columns in found for topic, _ in zip(columns.topics, range(columns.rows), strict=False)]


def test_a_level_is_the_topic_with_that_priority() -> None:
    assert topics(level=pa.array([0, 2, 0], pa.int32()), value=[b"a"] * 3) == ["clicks", "payments", "clicks"]


def test_a_topic_stays_under_its_own_name_with_its_level_or_without() -> None:
    assert topics(topic=["payments", "clicks"], value=[b"a"] * 2) == ["payments", "clicks"]
    assert topics(topic=["payments"], level=pa.array([2], pa.int8()), value=[b"a"]) == ["payments"]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"level": [2, 1]}, "Row 2 of its task is for level 1, but no topic in the option `priorities` has this level"),
        ({"level": pa.array([2, None], pa.int64())}, "Row 2 of its task has no level"),
        ({"topic": ["clicks", "orders"]}, "Row 2 of its task is for the topic 'orders', which is not in the option"),
        ({"topic": ["clicks", None]}, "Row 2 of its task has no topic"),
        (
            {"topic": ["clicks", "payments"], "level": [0, 1]},
            "Row 2 of its task has level 1 and topic payments, but the option `priorities` assigns payments to level 2",
        ),
    ],
)
def test_what_priorities_does_not_have_is_refused_with_the_row(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DeliveryError, match=sentence):
        topics(**columns, value=[b"a"] * 2)


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 999), min_size=1), st.data())
def test_every_row_has_the_topic_that_a_table_gives_it(priorities: dict[str, int], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(priorities)), min_size=1))
    levels = pa.array([priorities[name] for name in names])
    assert existing_topics(pa.array(names), levels, priorities, str).to_pylist() == names
    if len(set(priorities.values())) == len(priorities):
        assert existing_topics(None, levels, priorities, str).to_pylist() == names


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (("value", "level"), {"topic": "orders"}, "`priorities` gives each level its own topic. Remove one"),
        (("value",), {}, "needs a `level` column or a `topic` column"),
        (("value", "level"), {"priorities": '{"a": 1, "b": 1}'}, "both a and b the level 1"),
    ],
)
def test_columns_that_do_not_say_a_rows_topic_are_refused(
    columns: tuple[str, ...], options: Any, sentence: str
) -> None:
    types = {"value": BinaryType(), "level": IntegerType()}
    schema = StructType([StructField(name, types[name]) for name in columns])
    with pytest.raises(ConfigError, match=sentence):
        check_columns(schema, parse(SINK | options))
