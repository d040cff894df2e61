"""The results of a handler that returns Arrow data: one array for the rows of its batch.

The array is converted as a whole. If that fails, its rows are converted one by one, so that a value which does not fit
fails only its own row. What is kept is a copy, since Arrow may share its memory with a NumPy array that the handler
reuses.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from headway.spark.stage.fitting_arrays import fitted
from headway.spark.stage.result_type import MOST_BYTES, OfArray, ResultType

_HOW = "Return a pyarrow Array, or a RecordBatch or Table whose columns are the fields of the schema"


def results_of_arrow(returned: Any, count: int, results: ResultType) -> Sequence[OfArray]:
    """Return the result of each row of a batch, or the error of a row whose result is not of the type.

    Raises `ValueError` if the handler returned something other than Arrow data, or an array of another length.
    """
    array = _as_array(returned, results)
    if len(array) != count:
        raise ValueError(f"The handler returned {len(array)} results for a batch of {count} rows. Return one for each.")
    if not results.has_variant:
        with suppress(Exception):  # Arrow's error, or that of a value that does not fit; row by row shows which one
            whole, size = _converted(array, results, MOST_BYTES)  # if all together are small enough, so is each
            return [OfArray(whole, index, size // count) for index in range(count)]
    return [_alone(array, index, results) for index in range(count)]


def _as_array(returned: Any, results: ResultType) -> pa.Array:
    if isinstance(returned, pa.RecordBatch | pa.Table):
        if results.is_struct:
            returned = returned.to_struct_array()
        elif returned.num_columns == 1:
            returned = returned.column(0)
        else:
            raise ValueError(
                f"The handler returned {returned.num_columns} columns, but the schema is a single one, without fields. "
                "Return only that column."
            )
    if isinstance(returned, pa.ChunkedArray):
        returned = pa.concat_arrays(returned.chunks) if returned.num_chunks else pa.nulls(0)
    if not isinstance(returned, pa.Array):
        raise ValueError(f"The handler returned a {type(returned).__name__}, which is not Arrow data. {_HOW}.")
    return returned


def _converted(array: pa.Array, results: ResultType, most: int) -> tuple[pa.Array, int]:
    whole = fitted(array, results.arrow_type)
    whole = pa.concat_arrays([whole, whole.slice(0, 0)])
    whole.validate(full=True)  # an array made of buffers can hold anything, and Spark's Java side trusts it
    return whole, results.check_array(whole, most)


def _alone(array: pa.Array, index: int, results: ResultType) -> OfArray:
    """Return the result at this index, in an array of its own, or the error of a result that is not of the type."""
    try:
        if results.has_variant:
            checked, size = results.checked(array[index].as_py())
            return OfArray(results.column([checked]), 0, size)
        one, size = _converted(array.take(pa.array([index], pa.int64())), results, MOST_BYTES)
        return OfArray(one, 0, size)
    except Exception as error:  # from Arrow, or from Python for a value that it cannot represent
        return OfArray(None, 0, 0, error)
