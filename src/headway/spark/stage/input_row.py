"""The row that a handler gets, whose columns are converted to Python values when a handler first reads them.

Rows often have many columns, of which handlers read only a few. Converting a single timestamp takes 5 µs, which is as
long as everything else that the stage does for a row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Row

from headway.records.history import Origin
from headway.spark.stage import row_record
from headway.spark.stage.column_values import values_of

_VALUE_OVERHEAD = 56  # bytes of a Python object and its slot in a list, in addition to the bytes of the Arrow value


class ColumnValues(dict[str, Any]):
    """The columns of a batch by name. A column is converted to Python values when it is first read.

    `size` is the number of bytes that the batch and the converted values take. Reading a missing column raises
    `KeyError`.

    Args:
        batch: The columns in Arrow form.
        indices: For each row of `batch`, the index by which the row is looked up. If `batch` contains only some rows of
            an earlier batch, these are the rows' indices in the earlier batch. By default, rows are looked up by their
            position in `batch`.
        level_topics: Whether the Kafka topic of a row ends with the row's level.
    """

    def __init__(
        self, batch: pa.RecordBatch, indices: Iterable[int] | None = None, *, level_topics: bool = True
    ) -> None:
        super().__init__()
        self._batch = batch
        self._places = None if indices is None else {index: place for place, index in enumerate(indices)}
        self.names: list[str] = batch.schema.names
        self.size: int = batch.nbytes
        self.level_topics = level_topics

    def __missing__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        # Two threads may convert the same column at the same time. That is harmless, because the results are equal.
        column = self._batch.column(self.names.index(name))
        values = self[name] = self._values(column)
        self.size += column.nbytes + _VALUE_OVERHEAD * len(column)
        return values

    def scalar(self, name: str, index: int) -> pa.Scalar:
        """Return one value in Arrow form, without converting its column to Python values."""
        return self._batch.column(self.names.index(name))[index if self._places is None else self._places[index]]

    def taken(self, names: Sequence[str], indices: Sequence[int]) -> pa.RecordBatch:
        """Return the named columns of the rows at these indices, in Arrow form."""
        records = self._batch.select([self.names.index(name) for name in names])
        places = indices if self._places is None else [self._places[index] for index in indices]
        first, last = places[0], places[-1]
        if places == list(range(first, last + 1)):
            return records.slice(first, len(places))  # a slice copies nothing
        return records.take(pa.array(places, pa.int32()))

    def _values(self, column: pa.Array) -> Any:
        values = values_of(column)
        return values if self._places is None else _Reindexed(values, self._places)


class InputRow:
    """A row with its columns as attributes; `row["name"]` reads a column whose name cannot be an attribute.

    Values are the same as in a UDF of PySpark: a struct is a `Row`, a map is a dict, and a VARIANT is a `VariantVal`.
    Unlike in a UDF, a timestamp is a datetime with a time zone: the session's time zone, or UTC if Python does not
    support that time zone. Reading a value that Python cannot represent, such as a date after the year 9999, raises an
    error. If the row is copied or sent to another process, it becomes a `Row` of Spark with all columns.

    A row from `format("headway")` also has the attributes `kafka_topic`, `origin`, `raw_key` and `raw_value` of a
    `ConsumerRecord`, unless a column has the same name.
    """

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: ColumnValues, index: int) -> None:
        self._columns = columns
        self._index = index

    def __getattr__(self, name: str) -> Any:
        try:
            values = self._columns[name]
        except KeyError:
            if (of_record := _OF_RECORDS.get(name)) and (value := of_record(self)) is not None:
                return value
            raise AttributeError(f"The row has no column `{name}`. It has {', '.join(self._columns.names)}.") from None
        return values[self._index]

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._index]

    def asDict(self) -> dict[str, Any]:  # noqa: N802  # the name of the method in Spark's Row
        """Return the values of all columns by name, as `asDict` of Spark's `Row` does."""
        return {name: self[name] for name in self._columns.names}

    def record_origin(self) -> Origin | None:
        """Return the topic, partition and offset at which the row's record was first stored.

        Returns None if the row has no columns topic, partition and offset.
        """
        return row_record.origin_of(self._columns, self._index)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return Row(**self.asDict()).__reduce__()

    def __repr__(self) -> str:
        return f"InputRow of {', '.join(self._columns.names)}"  # leaves out the contents, which can be secret


def _column(name: str) -> Callable[[InputRow], Any]:
    return lambda row: row[name] if name in row._columns.names else None


_OF_RECORDS: Mapping[str, Callable[[InputRow], Any]] = {
    "kafka_topic": lambda row: row_record.kafka_topic_of(row._columns, row._index),
    "origin": InputRow.record_origin,
    "raw_key": _column("key"),
    "raw_value": _column("value"),
}


def shrunk(batch: pa.RecordBatch, rows: Sequence[InputRow]) -> ColumnValues:
    """Move these rows to a new batch that contains only them. Returns the new batch's columns.

    Handlers may be reading the rows at the same time.
    """
    level_topics = not rows or rows[0]._columns.level_topics
    columns = ColumnValues(batch, [row._index for row in rows], level_topics=level_topics)
    for row in rows:
        # The index of the row stays the same, so a concurrent reader finds its values in the old and the new columns.
        row._columns = columns
    return columns


def place_of(row: InputRow) -> tuple[ColumnValues, int]:
    """Return the columns that a row belongs to, and the index of the row in these columns."""
    return row._columns, row._index


def source_of(row: InputRow) -> str | None:
    """Format the topic, level, partition and offset of a row's record for messages.

    Returns None if the row lacks one of the columns topic, partition and offset.
    """
    columns, index = row._columns, row._index
    if not {"topic", "partition", "offset"} <= set(columns.names):
        return None
    names = [name for name in ("topic", "level", "partition", "offset") if name in columns.names]
    return ", ".join(f"{name} {columns.scalar(name, index)}" for name in names)


class _Reindexed:
    """The values of a column, looked up by the indices that the rows had before their batch was shrunk."""

    def __init__(self, values: Sequence[Any], places: Mapping[int, int]) -> None:
        self._values = values
        self._places = places

    def __getitem__(self, index: int) -> Any:
        return self._values[self._places[index]]
