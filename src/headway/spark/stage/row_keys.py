"""Makes the keys by which rows are kept in order. Two keys are equal if and only if Spark considers the values equal.

The Python values that handlers read cannot be used as keys. NaN is not equal to itself, and a value that Python cannot
represent would fail the whole task: text that is not UTF-8, a year after 9999, or a time in an unsupported time zone.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

_NAN: Final = object()
_KINDS = (
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    NumericType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)


def is_key(kind: DataType) -> bool:
    """Return whether a column of this type can be part of a key. Equal values must have equal keys.

    Equal VARIANTs, and equal strings with a collation, can have different keys.
    """
    return kind == StringType() if isinstance(kind, StringType) else isinstance(kind, _KINDS)


def row_keys(batch: pa.RecordBatch, names: Sequence[str]) -> Iterable[Hashable]:
    """Return the key of each row, made from the named columns. If no columns are named, all keys are None."""
    columns = [_hashable(batch.column(batch.schema.names.index(name))) for name in names]
    if len(columns) == 1:
        return columns[0]
    return zip(*columns, strict=True) if columns else repeat(None, batch.num_rows)


def _hashable(column: pa.Array) -> list[Hashable]:
    kind = column.type
    if pa.types.is_floating(kind):
        return [value if value == value else _NAN for value in column.to_pylist()]  # noqa: PLR0124 - NaN is not
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column.to_pylist()  # type: ignore[no-any-return]
