"""Determines the topic of each row if the option `priorities` assigns levels to existing topics."""

from collections.abc import Callable, Mapping

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from headway.declarations import shown
from headway.errors import DeliveryError

NameOf = Callable[[int], str]
"""A function that returns the name of the row at an index, for use in an error message."""


def existing_topics(
    topics: pa.Array | None, levels: pa.Array | None, priorities: Mapping[str, int], name_of: NameOf
) -> pa.Array:
    """Return the Kafka topic of each row: the row's own topic if it has one, otherwise the topic of its level.

    Raises `DeliveryError` if the topic or level of a row is not in `priorities`, or if a row's level is not the level
    of its topic.
    """
    if topics is None:
        assert levels is not None  # noqa: S101 - the columns were checked
        refuse_null("level", levels, name_of)
        return _topics_of(levels, priorities, name_of)
    refuse_null("topic", topics, name_of)
    expected = _levels_of(topics, priorities, name_of)
    if levels is not None and (index := first_true(pc.not_equal(levels.cast(pa.int64()), expected))) >= 0:
        raise DeliveryError(
            f"{name_of(index)} has level {levels[index]} and topic {topics[index]}, but the option `priorities` "
            f"assigns {topics[index]} to level {expected[index]}. Drop the column `level`, or correct the option."
        )
    return topics


def _topics_of(levels: pa.Array, priorities: Mapping[str, int], name_of: NameOf) -> pa.Array:
    found = pc.index_in(levels.cast(pa.int64()), pa.array(priorities.values(), pa.int64()))
    if found.null_count:
        index = first_true(pc.is_null(found))
        raise DeliveryError(
            f"{name_of(index)} is for level {levels[index]}, but no topic in the option `priorities` has this level. "
            "Add a topic with this level, or correct the column `level`."
        )
    return pa.array(priorities, pa.string()).take(found)


def _levels_of(topics: pa.Array, priorities: Mapping[str, int], name_of: NameOf) -> pa.Array:
    # The names are compared as bytes, because a string in Spark need not be UTF-8.
    names = pa.array([name.encode() for name in priorities], pa.large_binary())
    in_bytes = topics.cast(pa.binary() if pa.types.is_string(topics.type) else pa.large_binary())
    found = pc.index_in(in_bytes.cast(pa.large_binary()), names)
    if found.null_count:
        index = first_true(pc.is_null(found))
        topic = in_bytes[index].as_py().decode(errors="replace")
        raise DeliveryError(
            f"{name_of(index)} is for the topic {shown(topic)}, which is not in the option `priorities`. Add it to the "
            "option, or correct the column `topic`."
        )
    return pa.array(priorities.values(), pa.int64()).take(found)


def first_true(found: pa.Array) -> int:
    """Return the index of the first true element, or -1 if no element is true."""
    return int(pc.index(found, pa.scalar(True)).as_py())


def refuse_null(name: str, column: pa.Array, name_of: NameOf) -> None:
    """Raise `DeliveryError` if a column has nulls. The error names the first row whose value is null."""
    if column.null_count:
        raise DeliveryError(
            f"{name_of(first_true(pc.is_null(column)))} has no {name}: it is null. Fill it in, or filter out such rows."
        )
