"""Converts an Arrow column to the same Python values that PySpark passes to a UDF.

Arrow itself converts maps to lists of pairs, and structs and VARIANTs to dicts. A function that was written as a UDF
would fail on such values, or return wrong results without an error.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.types import VariantVal

Form = Callable[[Any], Any]
"""A function that converts a value from Arrow's form to PySpark's."""


class _OneByOne(Sequence[Any]):
    """The values of a column, each converted when it is read. So a value that cannot be read fails only its own row."""

    def __init__(self, column: pa.Array, form: "Form | None") -> None:
        self._column = column
        self._form = form

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: Any) -> Any:
        value = self._column[index].as_py()
        return self._form(value) if self._form else value


def values_of(column: pa.Array) -> Sequence[Any]:
    """Return the values of a column as PySpark passes them to a UDF.

    A value that Python cannot represent raises an error only when it is read.
    """
    if (readable := _readable(column.type)) != column.type:
        column = column.cast(readable)
    form = _form(column.type)
    try:
        values: list[Any] = column.to_pylist()
        return list(map(form, values)) if form else values
    except Exception:  # raised, for example, for a year that Python does not support, or text that is not UTF-8
        return _OneByOne(column, form)


def _form(kind: pa.DataType) -> Form | None:
    """Return the function that converts a value from Arrow's form to PySpark's, or None if the forms are the same."""
    if pa.types.is_map(kind):
        return _form_of_map(_form(kind.key_type) or _same, _form(kind.item_type) or _same)
    if pa.types.is_struct(kind):
        return _form_of_struct(kind)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and (form := _form(kind.value_type)):
        return lambda values: None if values is None else list(map(form, values))
    return None


def _same(value: Any) -> Any:
    return value


def _form_of_map(form_of_key: Form, form_of_item: Form) -> Form:
    return lambda pairs: None if pairs is None else {form_of_key(key): form_of_item(item) for key, item in pairs}


def _form_of_struct(kind: pa.StructType) -> Form:
    if _is_variant(kind):
        return lambda value: None if value is None else VariantVal(value["value"], value["metadata"])
    names = [field.name for field in kind]
    make = Row(*names)
    forms = [_form(field.type) for field in kind]
    if any(forms):
        parts = [(name, form or _same) for name, form in zip(names, forms, strict=True)]
        return lambda value: None if value is None else make(*(form(value[name]) for name, form in parts))
    return lambda value: None if value is None else make(*value.values())


def _is_variant(kind: pa.StructType) -> bool:
    """Return whether a struct is a VARIANT, which Spark marks in the metadata of one of its fields."""
    return any((field.metadata or {}).get(b"variant") == b"true" for field in kind)


def _readable(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC in place of each time zone that Python does not support, such as Java's `GMT+02:00`."""
    if pa.types.is_timestamp(kind):
        return kind if _is_known(kind.tz) else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_readable_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_readable_field(kind.key_field), _readable_field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_readable_field(kind.value_field))
    return kind


def _readable_field(field: pa.Field) -> pa.Field:
    return field.with_type(_readable(field.type))


@cache  # called often, and a session has only one time zone
def _is_known(zone: str | None) -> bool:
    try:
        pa.array([0], pa.timestamp("us", zone)).to_pylist()
    except Exception:  # raised by zoneinfo, or by pytz if it is installed
        return False
    return True
