"""Converts the results of handlers to Arrow.

Each result is converted on its own as soon as the handler has returned it. So a result of the wrong type fails only its
own row, and the handler can no longer change a result that the stage has taken.

Results are not converted together, because Arrow expects all values of one conversion to have the form of the first
one. A dict and a tuple can both stand for a struct, but a list of both cannot be converted; and if some dicts have text
keys and others have bytes keys, some of them become null without an error. Only plain values, of which each type has
just one form, are converted together.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    Row,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from headway.core import user_errors
from headway.errors import ConfigError

MOST_BYTES = 64 * 2**20
"""The maximum size of a result in bytes. Spark's Java side holds several copies of each result: with 1 GB of heap,
results of 128 MB worked, results of 256 MB failed their task, and a result of 450 MB ended the process."""

_ARRAY_BYTES = 2_500  # the memory that an array of one struct with two fields takes, without its values
_UNSURE: Final[Any] = object()
_PLAIN_FORM, _ARRAY_FORM = -1, -2  # negative, so that they differ from the ids of objects


class OfArray(NamedTuple):
    """The result of a row: the element at `place` in an array of the result type, or an error if it does not fit."""

    array: pa.Array
    place: int
    size: int  # the size of the result in bytes
    error: Exception | None = None


class TooLargeError(ValueError):
    """A result is larger than Spark can process."""


class ResultType:
    """The type of a handler's results, which checks results and converts them to Arrow.

    `zone` is the time zone of the session, in which times without a zone are interpreted. Raises `ConfigError` if Arrow
    does not have the type.
    """

    def __init__(self, kind: DataType, zone: str = "UTC") -> None:
        try:
            self.arrow_type = to_arrow_type(kind, timezone=zone)
        except PySparkException as error:
            raise ConfigError(
                f"The schema is {kind.simpleString()}, for which Arrow has no type: {error}. Use a type that Arrow "
                "has, such as a string, and cast the column in Spark."
            ) from error
        self._refusal = f"The handler returned a value that does not fit {kind.simpleString()}"
        self.is_struct = isinstance(kind, StructType)
        self._plain = _plain_form(kind)
        self._prepare = _preparation(kind, zone)
        self.has_variant = _has_variant(kind)
        self._may_lack = _has_required(self.arrow_type)

    def checked(self, result: Any) -> tuple[Any, int]:
        """Convert a result to an immutable form that `column` takes. Returns this form and its size in bytes.

        If the result is not of this type, this method raises any error that Arrow, Python or one of the user's classes
        raises for it.
        """
        if result is None:
            return None, 0
        if type(result) is OfArray:
            if result.error:
                raise result.error
            return result, result.size
        # A conversion by Arrow takes some microseconds, so results that do not need it are not converted.
        if self._plain and (plain := self._plain(result)) is not _UNSURE:
            return plain, _checked_size(_size(plain), MOST_BYTES)
        if self.is_struct and (fields := getattr(type(result), "__dataclass_fields__", None)):
            result = {name: _as_dict(getattr(result, name)) for name in fields}
        array = self._converted([self._prepare(result) if self._prepare else result])
        return array, self.check_array(array) + _ARRAY_BYTES

    def check_array(self, array: pa.Array, most: int = MOST_BYTES) -> int:
        """Return the size of an array of this type in bytes.

        Raises `ValueError` if the array is too large, or if it has a null where the type does not allow one.
        """
        size = _checked_size(array.get_total_buffer_size(), most)
        if self._may_lack and (lacking := _lacking(array, "")):
            raise ValueError(f"{lacking} is null or missing, but the schema requires a value")
        return size

    def column(self, results: Sequence[Any]) -> pa.Array:
        """Return an Arrow column of results that `checked` has converted."""
        parts: list[pa.Array] = []
        for form, run in groupby(results, _form):
            some = list(run)
            if form == _PLAIN_FORM:
                parts.append(self._converted(some))
            elif form == _ARRAY_FORM:
                parts += some
            else:
                parts.append(some[0].array.take(pa.array([each.place for each in some], pa.int64())))
        return pa.concat_arrays(parts) if parts else self._converted([])

    def _converted(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.arrow_type)

    def refusal(self, error: BaseException) -> str:
        """Return the error message for a result for which `checked` raised this error."""
        if isinstance(error, TooLargeError):
            return str(error)
        return f"{self._refusal}: {short_error(error)}"


def short_error(error: BaseException) -> str:
    """Return the text of an error, valid for Arrow and short enough for a header.

    Returns an empty string if the error's `__str__` raises an error.
    """
    return clean(user_errors.text_of(error))


def clean(text: str) -> str:
    """Replace lone surrogates, which text from file names can contain but Arrow does not accept."""
    return text.encode(errors="replace").decode()


def _as_dict(value: Any) -> Any:
    """Convert a mapping of any class to a dict, the only mapping that Arrow accepts. Returns other values unchanged."""
    return dict(value) if isinstance(value, Mapping) and type(value) is not dict else value


def _form(result: Any) -> int:
    """Return a number that is the same for results which `ResultType.column` can convert together.

    The number identifies the form of the result or, for an element of an array, the array.
    """
    if type(result) is OfArray:
        return id(result.array)
    return _ARRAY_FORM if isinstance(result, pa.Array) else _PLAIN_FORM


def _checked_size(size: int, most: int) -> int:
    if size > most:
        raise TooLargeError(
            f"The handler returned a result of {size} bytes, but a result can have at most {most} bytes. Store larger "
            "data elsewhere, and return its address."
        )
    return size


def _size(plain: Any) -> int:
    """Return about how many bytes a plain value takes in Arrow. Only text is counted."""
    if isinstance(plain, str):
        return len(plain)
    return sum(map(_size, plain)) if isinstance(plain, tuple) else 0


Plain = Callable[[Any], Any]


def _plain_form(kind: DataType) -> Plain | None:
    """Return a function that converts a result to its plain value, or None if the type has no plain values.

    A plain value is immutable, and is of the right type without a check by Arrow: a number, an ASCII text, a bool, or
    a tuple of these for a struct. The function returns `_UNSURE` for a result that might not be of the type.
    """
    if isinstance(kind, StructType):
        return _plain_struct(kind)
    if type(kind) not in _PLAIN:
        return None
    python_type, is_sure = _PLAIN[type(kind)]
    return lambda value: value if type(value) is python_type and is_sure(value) else _UNSURE


def _plain_struct(kind: StructType) -> Plain | None:
    forms = [_plain_form(field.dataType) for field in kind]
    if not forms or not all(forms):
        return None
    names, nullable = kind.names, [field.nullable for field in kind]
    known = set(names)

    def plain(value: Any) -> Any:
        if type(value) is dict and value.keys() == known:
            value = tuple(map(value.__getitem__, names))
        elif type(value) not in (tuple, Row) or len(value) != len(names):
            return _UNSURE
        fields = []
        for field, form, may_be_null in zip(value, forms, nullable, strict=True):
            part = field if field is None and may_be_null else form(field)  # type: ignore[misc]
            if part is _UNSURE:
                return _UNSURE
            fields.append(part)
        return tuple(fields)

    return plain


def _fits(bits: int) -> Callable[[int], bool]:
    most = 2 ** (bits - 1)
    return lambda number: -most <= number < most


# The types whose values can be checked without Arrow. For each, the Python type of its values and a check for them.
_PLAIN: dict[type[DataType], tuple[type, Callable[[Any], bool]]] = {
    StringType: (str, str.isascii),
    IntegerType: (int, _fits(32)),
    LongType: (int, _fits(64)),
    DoubleType: (float, lambda _: True),
    BooleanType: (bool, lambda _: True),
}


def _has_required(kind: pa.DataType) -> bool:
    """Return whether the type has fields or elements that must not be null. Keys of maps are not considered.

    Arrow itself checks that keys of maps are not null.
    """
    fields = _fields(kind)
    return any(not field.nullable or _has_required(field.type) for field in fields)


def _fields(kind: pa.DataType) -> Sequence[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _lacking(array: pa.Array, name: str) -> str | None:
    """Return the name of a field that must not be null but is, or None. Spark's Java side would fail on such an array.

    Arrow itself does not check this.
    """
    present = array.drop_null()
    for field, part in zip(_fields(array.type), _parts(present), strict=True):
        part_name = f"{name}.{field.name}" if name else field.name
        if not field.nullable and part.null_count:
            return part_name
        if lacking := _lacking(part, part_name):
            return lacking
    return None


def _parts(array: pa.Array) -> Sequence[pa.Array]:
    """Return the fields of structs, the values of maps, or the elements of lists. The array must not have nulls."""
    if pa.types.is_struct(array.type):
        return array.flatten()  # type: ignore[no-any-return]
    if pa.types.is_map(array.type):
        return [array.items]
    return [array.flatten()] if pa.types.is_list(array.type) else []


Preparation = Callable[[Any], Any]


def _preparation(kind: DataType, zone: str) -> Preparation | None:
    """Return the function that prepares a result for Arrow, or None if Arrow can convert results of this type as is."""
    if isinstance(kind, VariantType | TimestampNTZType):
        return _or_none(_variant if isinstance(kind, VariantType) else _naive)
    if isinstance(kind, TimestampType):
        return _or_none(partial(_aware, zone, _tzinfo(zone)))
    if isinstance(kind, ArrayType) and (element := _preparation(kind.elementType, zone)):
        return _or_none(lambda values: [element(value) for value in values])
    if isinstance(kind, MapType):
        return _map_preparation(_preparation(kind.keyType, zone), _preparation(kind.valueType, zone))
    if isinstance(kind, StructType):
        parts = {field.name: part for field in kind if (part := _preparation(field.dataType, zone))}
        return _or_none(lambda value: _prepared_struct(value, kind.names, parts)) if parts else None
    return None


def _map_preparation(of_key: Preparation | None, of_value: Preparation | None) -> Preparation | None:
    if not (of_key or of_value):
        return None
    key_of, value_of = of_key or _as_it_is, of_value or _as_it_is
    return _or_none(lambda values: [(key_of(key), value_of(value)) for key, value in dict(values).items()])


def _as_it_is(value: Any) -> Any:
    return value


def _or_none(prepare: Preparation) -> Preparation:
    return lambda value: None if value is None else prepare(value)


def _prepared_struct(value: Any, names: Sequence[str], parts: Mapping[str, Preparation]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        fields = dict(value)
    elif isinstance(value, tuple) and len(value) == len(names):
        fields = dict(zip(names, value, strict=True))
    else:
        raise TypeError(
            f"a struct must be a dict, or a tuple or Row of {len(names)} values, but it is {type(value).__name__}"
        )
    return fields | {name: prepare(fields.get(name)) for name, prepare in parts.items()}


def _variant(value: Any) -> dict[str, bytes]:
    if isinstance(value, Mapping) and value.keys() == {"value", "metadata"}:  # the form that a VARIANT has in Arrow
        value = VariantVal(value["value"], value["metadata"])
    if not isinstance(value, VariantVal):
        raise TypeError(
            f"a VARIANT must be a VariantVal, as VariantVal.parseJson returns, but it is {type(value).__name__}"
        )
    value.toPython()  # checks the bytes, because Spark's Java side would fail on invalid bytes
    return {"value": value.value, "metadata": value.metadata}


def _has_variant(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_variant(kind.elementType)
    if isinstance(kind, MapType):
        return _has_variant(kind.keyType) or _has_variant(kind.valueType)
    if isinstance(kind, StructType):
        return any(_has_variant(field.dataType) for field in kind)
    return isinstance(kind, VariantType)


def _tzinfo(zone: str) -> tzinfo | None:
    """Return the time zone with this name, which comes from Java, or None if Python does not support it."""
    with suppress(Exception):  # raised for an offset such as +02:00, and on a machine without time zone data
        return ZoneInfo(zone)
    with suppress(Exception):  # raised by zoneinfo, or by pytz if it is installed
        return pa.scalar(0, pa.timestamp("us", zone)).as_py().tzinfo  # type: ignore[no-any-return]
    return None


def _datetime(value: Any) -> datetime:
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if not isinstance(value, datetime):
        raise TypeError(f"a timestamp must be a datetime, but it is {type(value).__name__}")
    return value


def _aware(zone: str, known: tzinfo | None, value: Any) -> datetime:
    """Return a time with its own time zone, or the session's. Arrow would take a time without a zone as UTC."""
    at = _datetime(value)
    if at.utcoffset() is not None:
        return at
    if known is None:
        raise ValueError(
            f"a datetime without a time zone is in the session's time zone {zone}, which Python does not support. "
            "Return a datetime with a time zone, such as datetime.now(UTC)"
        )
    return at.replace(tzinfo=known)


def _naive(value: Any) -> datetime:
    """Return the local time of a datetime, without its time zone. Arrow would convert the time to UTC."""
    return _datetime(value).replace(tzinfo=None)
