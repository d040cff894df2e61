"""Reads the Kafka topic, the origin and the headers of a row's record from the columns of `format("headway")`.

Invariant: these functions never raise. Users can create columns with the same names and any content. If such a column
has a value that no record can have, it is treated as if the column were missing.
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]

from headway.core.levels.naming import level_topic
from headway.records.history import Origin, history_of
from headway.records.record_types import Header

if TYPE_CHECKING:
    from headway.spark.stage.input_row import ColumnValues


def kafka_topic_of(columns: "ColumnValues", index: int) -> str | None:
    """Return the Kafka topic of a row's record, such as `orders-2`, or None if the columns for it are missing."""
    topic = _value(columns, index, "topic")
    if not isinstance(topic, str):
        return None
    level: Any = _value(columns, index, "level") if columns.level_topics else None
    return level_topic(topic, level) if _is_whole(level) else topic


def row_headers(columns: "ColumnValues", index: int) -> list[Header]:
    """Return the headers of a row's record, or an empty list if the source's column `headers` is missing."""
    found = _value(columns, index, "headers")
    if not isinstance(found, list):
        return []
    return [
        (each["key"], each["value"])
        for each in found
        if isinstance(each, dict) and each.keys() >= {"key", "value"} and isinstance(each["key"], str)
    ]


def origin_of(columns: "ColumnValues", index: int) -> Origin | None:
    """Return the topic, partition and offset at which a row's record was first stored; None if a column is missing."""
    topic = kafka_topic_of(columns, index)
    partition, offset = (_value(columns, index, name) for name in ("partition", "offset"))
    if topic is None or not _is_whole(partition) or not _is_whole(offset):
        return None
    history = history_of(row_headers(columns, index), topic)
    return history.origin if history else Origin(topic, partition, offset)


def place_in_topic(columns: "ColumnValues", index: int) -> tuple[int | None, int | None]:
    """Return the partition and the offset of a row's record. Each is None if its column is missing."""
    partition, offset = (_value(columns, index, name) for name in ("partition", "offset"))
    return partition if _is_whole(partition) else None, offset if _is_whole(offset) else None


def level_of_row(columns: "ColumnValues", index: int) -> int:
    """Return the level of a row's record, or 0 if its column is missing."""
    level = _value(columns, index, "level")
    return level if _is_whole(level) else 0


def timestamp_of(columns: "ColumnValues", index: int) -> int:
    """Return the timestamp of a row's record in milliseconds since the epoch, or 0 if it has no timestamp."""
    if "timestamp" not in columns.names:
        return 0
    try:
        value = columns.scalar("timestamp", index).cast(pa.timestamp("ms", "UTC"), safe=False).value
    except Exception:  # the column is the user's own and has another type
        return 0
    return value if _is_whole(value) else 0


def _value(columns: "ColumnValues", index: int, name: str) -> Any:
    """Return one value, without converting its whole column to Python values. Returns None if the value is missing."""
    if name not in columns.names:
        return None
    try:
        return columns.scalar(name, index).as_py()
    except Exception:  # the value is text that is not UTF-8
        return None


def _is_whole(value: object) -> bool:
    return type(value) is int and value >= 0
