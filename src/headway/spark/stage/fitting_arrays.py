"""Converts Arrow arrays to another type of the same kind: numbers to numbers, and structs by the names of their fields.

Arrow's own cast does too much, and too little. It makes a number of a text, which no handler means. It does not turn a
field that may be null into one that must not be. And it takes a time without a zone as UTC, whereas the rest of a
session uses its own zone.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

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


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array with this type. Nulls stay where they are, even where the type allows none.

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
    """Return times in the type's form: local times get its zone, and times with a zone lose theirs if it has none.

    Where clocks are put back, an ambiguous time means the first of both, as in Python.
    """
    if array.type.tz and not kind.tz:
        array = pc.local_timestamp(array)
    elif kind.tz and not array.type.tz:
        array = pc.assume_timezone(array, kind.tz, ambiguous="earliest", nonexistent="earliest")
    return array.cast(kind)


def _fitted_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    parts = array.flatten()  # each is sliced like its struct, and null where the struct is
    columns = []
    for field in kind:
        place = array.type.get_field_index(field.name)
        if place < 0:
            raise TypeError(f"it has no field {field.name}, or several")
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
        return fitted(array, field.type)
    except TypeError as error:
        raise TypeError(f"of {field.name}, {error}") from error


def _of_parts(array: pa.Array, kind: pa.DataType, parts: pa.Array) -> pa.Array:
    """Return a list or map with the same divisions, but with other elements."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [parts])
