"""The batch that a handler of Arrow gets: some columns of its rows, as they came from Spark."""

from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa  # type: ignore[import-untyped]

from headway.spark.stage.input_row import Columns, InputRow, place_of


def record_batch(rows: Sequence[InputRow], names: Sequence[str]) -> pa.RecordBatch:
    """Return these columns of these rows, in their order, without converting them to Python values."""
    places = [place_of(row) for row in rows]  # read once for each row, because the stage may copy its batch meanwhile
    parts = [
        _columns_of(run).taken(names, [index for _, index in run])
        for run in (list(run) for _, run in groupby(places, lambda place: id(place[0])))
    ]
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays([part.column(number) for part in parts]) for number in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema)


def _columns_of(run: Sequence[tuple[Columns, int]]) -> Columns:
    return run[0][0]
