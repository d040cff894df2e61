"""Splits the Arrow data that a handler returns for a batch into the result of each row.

The array is converted to the schema's type as a whole. If that fails, its elements are converted one by one, so that a
value which does not fit fails only its own row. The result is always a copy, because the array may share its memory
with a NumPy array that the handler reuses.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from headway.spark.stage.result_type import MOST_BYTES, OfArray, ResultType

_HOW = "Return a pyarrow Array, or a RecordBatch or Table whose columns are the fields of the schema"
_Is = Callable[[pa.DataType], bool]
_KINDS: Sequence[Sequence[_Is]] = [
    [pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal],
    [
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ],
    [pa.types.is_date],
    [pa.types.is_timestamp],
    [pa.types.is_time],
    [pa.types.is_duration],
]
_LISTS: Sequence[_Is] = [
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
]


def results_of_arrow(returned: Any, count: int, results: ResultType) -> Sequence[OfArray]:
    """Return the result of each row of a batch, which is an error if the row's value does not fit the schema's type.

    Raises `ValueError` if the handler returned something other than Arrow data, or an array whose length is not
    `count`.
    """
    array = _as_array(returned, results)
    if len(array) != count:
        raise ValueError(
            f"The handler returned {len(array)} results for a batch of {count} rows. Return one result for each row."
        )
    if not results.has_variant:
        with suppress(Exception):  # if any value does not fit, the values are converted one by one below
            # If all results together are small enough, each of them is small enough.
            whole, size = _converted(array, results, MOST_BYTES)
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
                f"The handler returned {returned.num_columns} columns, but the schema is a single type without fields. "
                "Return only one column."
            )
    if isinstance(returned, pa.ChunkedArray):
        returned = pa.concat_arrays(returned.chunks) if returned.num_chunks else pa.nulls(0)
    if not isinstance(returned, pa.Array):
        raise ValueError(f"The handler returned a {type(returned).__name__}, which is not Arrow data. {_HOW}.")
    return returned


def _converted(array: pa.Array, results: ResultType, most: int) -> tuple[pa.Array, int]:
    whole = converted(array, results.arrow_type)
    whole = pa.concat_arrays([whole, whole.slice(0, 0)])  # makes a copy, which Arrow would not do for a single array
    whole.validate(full=True)  # an array made from buffers can contain anything, and Spark's Java side does not check
    return whole, results.check_array(whole, most)


def _alone(array: pa.Array, index: int, results: ResultType) -> OfArray:
    """Return the result at this index in an array of its own, or an error if it does not fit the schema's type."""
    try:
        if results.has_variant:
            checked, size = results.checked(array[index].as_py())
            return OfArray(results.column([checked]), 0, size)
        one, size = _converted(array.take(pa.array([index], pa.int64())), results, MOST_BYTES)
        return OfArray(one, 0, size)
    except Exception as error:  # raised by Arrow, or by Python for a value that it cannot represent
        return OfArray(None, 0, 0, error)


def converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array to another type of the same kind: numbers to numbers, and structs by the names of their fields.

    Arrow's own cast is not used for everything, for three reasons. It rejects nulls where the type does not allow them;
    this function keeps them. It converts text to numbers, which a handler would not intend. And it interprets a time
    without a zone as UTC, not in the session's time zone.

    Raises `TypeError` for an array of another kind, and Arrow's errors for values that the type cannot represent.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    source = array.type
    if source == kind:
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(source):
        return _fitted_struct(array, kind)
    if pa.types.is_list(kind) and _is_any(_LISTS, source):
        return _fitted_list(array, kind)
    if pa.types.is_map(kind) and pa.types.is_map(source):
        return _fitted_map(array, kind)
    if not any(_is_any(same, source) and _is_any(same, kind) for same in _KINDS):
        raise TypeError(f"it is {source}")
    return _fitted_times(array, kind) if pa.types.is_timestamp(source) else array.cast(kind)


def _is_any(kinds: Sequence[_Is], kind: pa.DataType) -> bool:
    return any(each(kind) for each in kinds)


def _fitted_times(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert times to a type that may have a time zone when the array has none, or the other way round.

    Local times get the zone of the type. Times with a zone become local times of that zone if the type has none. When
    clocks are put back, an ambiguous local time means the earlier of the two possible times, as in Python.
    """
    if array.type.tz and not kind.tz:
        array = pc.local_timestamp(array)
    elif kind.tz and not array.type.tz:
        array = pc.assume_timezone(array, kind.tz, ambiguous="earliest", nonexistent="earliest")
    return array.cast(kind)


def _fitted_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    parts = array.flatten()  # each field has the struct's slice, and is null where the struct is null
    columns = []
    for field in kind:
        place = array.type.get_field_index(field.name)
        if place < 0:
            raise TypeError(f"it does not have exactly one field {field.name}")
        columns.append(_fitted_part(parts[place], field))
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null() if array.null_count else None)


def _fitted_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    return _of_parts(array, kind, _fitted_part(array.values, kind.value_field))


def _fitted_map(array: pa.Array, kind: pa.DataType) -> pa.Array:
    fields = [kind.key_field, kind.item_field]
    parts = [_fitted_part(part, field) for part, field in zip((array.keys, array.items), fields, strict=True)]
    return _of_parts(array, kind, pa.StructArray.from_arrays(parts, fields=fields))


def _fitted_part(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return converted(array, field.type)
    except TypeError as error:
        raise TypeError(f"of {field.name}, {error}") from error


def _of_parts(array: pa.Array, kind: pa.DataType, parts: pa.Array) -> pa.Array:
    """Return an array of lists or maps that have the lengths of those in `array`, and `parts` as their elements."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [parts])
