"""The batches that a stage receives from Spark, and their rows that are not put out yet."""

import math
from collections.abc import Hashable, Iterable, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from headway.runtime.gc_pause import GcPause
from headway.spark.stage.input_row import ColumnValues, InputRow, shrunk, source_of

_ROW_BYTES = 600  # the memory that a row takes in the stage and in the engine, without its values
_COLUMN_BYTES = 1_000  # the memory that a column of a batch takes at least, even if the batch has few rows


class StageRow:
    """A row as the engine gets it, in place of a record. The engine orders rows by their `offset` and `raw_key`."""

    __slots__ = ("batch", "index", "is_out", "offset", "priority", "raw_key", "row", "started")

    priority: float  # set only if the stage has a priority

    def __init__(self, batch: "InputBatch", index: int, offset: int, key: Hashable, row: InputRow) -> None:
        self.batch = batch
        self.index = index
        self.offset = offset
        self.raw_key = key
        self.row = row
        self.started: float | None = None
        self.is_out = False

    def __repr__(self) -> str:
        place = f"Row {self.offset + 1} of the task"  # leaves out the contents, which can be secret
        row = getattr(self, "row", None)  # `put_out` deletes this attribute
        source = row and source_of(row)
        return f"{place} ({source})" if source else place


class InputBatch:
    """The rows of a batch. `first` is the offset of the first row, and `left` the number of rows not put out yet."""

    def __init__(
        self, record_batch: pa.RecordBatch, first: int, keys: Iterable[Hashable], *, level_topics: bool = True
    ) -> None:
        self.first = first
        self._records = record_batch
        self._columns = ColumnValues(record_batch, level_topics=level_topics)
        columns = self._columns
        with GcPause():
            self.rows = [
                StageRow(self, index, first + index, key, InputRow(columns, index)) for index, key in enumerate(keys)
            ]
        self.left = len(self.rows)

    def set_priorities(self, name: str) -> None:
        """Set the priority of each row to its value in this column. Null and NaN count as the lowest priority."""
        column = pc.fill_null(self._records.column(self.names.index(name)).cast(pa.float64(), safe=False), -math.inf)
        for row, priority in zip(self.rows, column.to_pylist(), strict=True):
            row.priority = -math.inf if math.isnan(priority) else priority

    @property
    def size(self) -> int:
        """The bytes of memory that the batch takes, including the Python values of columns that handlers have read."""
        return self._columns.size + _COLUMN_BYTES * len(self.names) + _ROW_BYTES * self.left

    @property
    def names(self) -> list[str]:
        """The names of the batch's columns."""
        return self._columns.names

    def column(self, name: str) -> pa.Array | None:
        """Return a column of the batch in Arrow form, or None if the batch has no such column."""
        return self._records.column(self.names.index(name)) if name in self.names else None

    def put_out(self, rows: Sequence[StageRow]) -> list[pa.Array]:
        """Return the columns of these rows, and mark the rows as put out."""
        columns: list[pa.Array] = self._taken(rows).columns
        for row in rows:
            row.is_out = True
            del row.batch, row.row  # an idle thread may still refer to the row, and must not keep its batch in memory
        self.left -= len(rows)
        if not self.left:
            self.rows = []  # breaks the reference cycle, because each row refers to its batch
        return columns

    def shrink(self) -> None:
        """Copy the batch without the rows that are put out, unless more than half of its rows are left.

        Because of this condition, each row is copied at most once on average. Handlers may be reading rows of the batch
        at the same time.
        """
        if 2 * self.left > len(self.rows):
            return
        self.rows = [row for row in self.rows if not row.is_out]
        self._records = self._taken(self.rows)
        self._columns = shrunk(self._records, [row.row for row in self.rows])
        for index, row in enumerate(self.rows):
            row.index = index

    def _taken(self, rows: Sequence[StageRow]) -> pa.RecordBatch:
        return self._records.take(pa.array([row.index for row in rows], pa.int32()))
