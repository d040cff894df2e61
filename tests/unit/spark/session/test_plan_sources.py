"""The sources that a DataFrame of Spark Connect reads, as the protocol's messages tell of them."""

from typing import Any

import pytest
from pyspark.sql.connect import proto

from headway.spark.session.plan_sources import PlannedSource, planned_sources


class Frame:
    """A DataFrame of Spark Connect, of which only the plan and the session matter."""

    def __init__(self, root: Any) -> None:
        self._root = root

    @property
    def sparkSession(self) -> Any:  # noqa: N802  # Spark's name
        return self

    @property
    def _plan(self) -> Any:
        return self

    @property
    def client(self) -> None:
        return None

    def to_proto(self, client: object) -> Any:
        plan = proto.Plan()
        plan.root.CopyFrom(self._root)
        return plan


def read(kind: str = "headway", *, streaming: bool = False, **options: str) -> Any:
    relation = proto.Relation()
    relation.read.is_streaming = streaming
    relation.read.data_source.format = kind
    relation.read.data_source.options.update(options)
    return relation


def over(name: str, *inputs: Any) -> Any:
    relation = proto.Relation()
    operator = getattr(relation, name)
    fields = ("left", "right") if len(inputs) == 2 else (next(n for n in ("left_input", "input") if _has(operator, n)),)
    if name == "set_op":
        fields = ("left_input", "right_input")
    for field, each in zip(fields, inputs, strict=True):
        getattr(operator, field).CopyFrom(each)
    return relation


def _has(message: Any, field: str) -> bool:
    return field in message.DESCRIPTOR.fields_by_name


def sources(root: Any) -> list[PlannedSource]:
    return planned_sources(Frame(root))  # type: ignore[arg-type]


def test_options_have_names_in_lower_case_and_other_sources_are_none_of_ours() -> None:
    found = sources(over("join", read(splitPartitions="false", levels="3"), read("kafka")))
    assert found == [PlannedSource({"splitpartitions": "false", "levels": "3"}, is_stream=False, moved=False)]
    assert sources(over("filter", read(streaming=True)))[0].is_stream
    assert sources(proto.Relation()) == []
    table = proto.Relation()
    table.read.named_table.unparsed_identifier = "headway"
    assert sources(table) == []


@pytest.mark.parametrize("name", ["repartition", "repartition_by_expression", "aggregate", "sort", "deduplicate"])
def test_behind_an_operator_that_moves_rows_they_are_in_other_tasks(name: str) -> None:
    assert sources(over("project", over(name, read())))[0].moved
    assert not sources(over("project", over("filter", read())))[0].moved
    both = sources(over("set_op", over(name, read()), over("map_partitions", read())))
    assert [each.moved for each in both] == [True, False]
