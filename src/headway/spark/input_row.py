"""The row that a handler gets: each column is made into Python values when a handler first reads it.

Rows tend to be wide and handlers to read little of them: a timestamp alone costs 5 µs to make, as much as all else that
the stage does for a row.
"""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Row


class Columns(dict[str, list[Any]]):
    """The columns of a batch as Python values, made when they are asked for; `KeyError` for one that is not there."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        super().__init__()
        self._batch = batch
        self.names: list[str] = batch.schema.names

    def __missing__(self, name: str) -> list[Any]:
        if name not in self.names:
            raise KeyError(name)
        # Threads may make the same column at the same time: then it is made twice, and either will do.
        values: list[Any] = self._batch.column(self.names.index(name)).to_pylist()
        self[name] = values
        return values


class InputRow:
    """A row, whose columns are its attributes; `row["name"]` reads one whose name is no attribute's.

    Copied or sent to another process it is a `Row` of Spark's, with all columns.
    """

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: Columns, index: int) -> None:
        self._columns = columns
        self._index = index

    def __getattr__(self, name: str) -> Any:
        try:
            return self._columns[name][self._index]
        except KeyError:
            raise AttributeError(f"The row has no column {name}. It has {', '.join(self._columns.names)}.") from None

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._index]

    def asDict(self) -> dict[str, Any]:  # noqa: N802  # as Spark's Row has it
        """All columns by their names."""
        return {name: self[name] for name in self._columns.names}

    def __reduce__(self) -> str | tuple[Any, ...]:
        return Row(**self.asDict()).__reduce__()

    def __repr__(self) -> str:
        return f"InputRow of {', '.join(self._columns.names)}"  # nothing of its contents: they can be secret
