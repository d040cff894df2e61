"""Finds the sources `format("headway")` in the plan of a DataFrame."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

_FORMAT = "headway"

# These operators can move a row from the task that read it to another task.
_MOVING = {
    *("Repartition", "RepartitionByExpression", "RebalancePartitions", "Aggregate", "Window", "Sort", "Distinct"),
    *("Deduplicate", "DeduplicateWithinWatermark", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"),
    *("FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark"),
}
_MOVING_OVER_CONNECT = {
    *("repartition", "repartition_by_expression", "aggregate", "sort", "deduplicate", "group_map", "co_group_map"),
    *("apply_in_pandas_with_state", "transform_with_state"),
}
_RELATION = "spark.connect.Relation"


class PlannedSource(NamedTuple):
    """A source in a plan.

    The names of `options` are in lower case. `moved` is True if an operator after the source can move rows to other
    tasks.
    """

    options: Mapping[str, str]
    is_stream: bool
    moved: bool


def planned_sources(df: DataFrame) -> list[PlannedSource]:
    """Return the sources from which a DataFrame reads, in a classic session or a session of Spark Connect.

    With Spark Connect, a source behind a view is not found, and in a `foreachBatch` function no source is found.
    """
    if hasattr(df, "_jdf"):
        return list(_of_classic(df._jdf.queryExecution().analyzed()))
    plan = getattr(df, "_plan", None)
    return [] if plan is None else list(_of_connect(plan.to_proto(df.sparkSession.client).root))


def _of_classic(plan: Any, *, moved: bool = False) -> Iterator[PlannedSource]:
    match plan.getClass().getSimpleName():
        case "DataSourceV2Relation" if plan.table().name() == _FORMAT:
            yield PlannedSource(_lower(plan.options().asCaseSensitiveMap()), is_stream=False, moved=moved)
        case "StreamingRelationV2" if plan.sourceName() == _FORMAT:
            yield PlannedSource(_lower(plan.extraOptions().asCaseSensitiveMap()), is_stream=True, moved=moved)
        case name:
            children = plan.children()
            for number in range(children.size()):
                yield from _of_classic(children.apply(number), moved=moved or name in _MOVING)


def _of_connect(relation: Any, *, moved: bool = False) -> Iterator[PlannedSource]:
    """Yield the sources in a plan, given as a message of Spark Connect's protocol."""
    name = relation.WhichOneof("rel_type")
    if name is None:
        return
    operator = getattr(relation, name)
    if name == "read":
        if operator.WhichOneof("read_type") == "data_source" and operator.data_source.format == _FORMAT:
            yield PlannedSource(_lower(operator.data_source.options), operator.is_streaming, moved)
        return
    for field, value in operator.ListFields():
        if field.message_type is not None and field.message_type.full_name == _RELATION:
            for child in [value] if hasattr(value, "WhichOneof") else value:
                yield from _of_connect(child, moved=moved or name in _MOVING_OVER_CONNECT)


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): options[name] for name in options}
