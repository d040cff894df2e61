"""Reads the values of a worker's records: from JSON into a dataclass, or with a function that takes bytes."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any

import msgspec
from msgspec import inspect as shapes

from headway.declarations import check_reader, shown
from headway.errors import ConfigError

Value = type[Any] | UnionType | Callable[[bytes], Any]
"""A dataclass such as `Order`, `Order | None` if null values are expected, or a function that takes the bytes."""

_ADVICE = "Give a dataclass to read JSON, or a function that takes the bytes."


def reader_of(value: Value | None) -> Callable[[Any], Any] | None:
    """Return the function that reads a record's value from bytes, or None if the value stays as bytes.

    A null value, such as a tombstone of a compacted topic, becomes None if `value` is `Order | None`, or if it is a
    function, which is then not called. If `value` is `Order`, a null value cannot be read. Raises `ConfigError` for a
    type that cannot be read from any JSON.
    """
    if value is None:
        return None
    if dataclasses.is_dataclass(_class_of(_without_none(value))):
        return _JsonReader(value)
    check_reader("value", value, _ADVICE)
    return _FunctionReader(value)  # type: ignore[arg-type]  # `check_reader` has checked it


class _FunctionReader:
    """Reads values with the user's function, except for null values. Only the function is pickled."""

    def __init__(self, read: Callable[[bytes], Any]) -> None:
        self._read = read

    def __call__(self, raw: bytes | None) -> Any:
        return None if raw is None else self._read(raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return _FunctionReader, (self._read,)


class _JsonReader:
    """Reads JSON into a dataclass. Only the dataclass is pickled, because the decoder cannot be."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._takes_null = _without_none(kind) is not kind
        try:
            self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
            unreadable = _Shape().unreadable(shapes.type_info(_without_none(kind)))
        except Exception as error:
            raise ConfigError(
                f"value={_name(kind)} cannot be read from JSON: {error}. Pass a function that takes the bytes instead."
            ) from error
        if unreadable:
            raise ConfigError(
                f"value={_name(kind)} cannot be read from JSON: {unreadable}. Pass a function that takes the bytes "
                "instead."
            )

    def __call__(self, raw: bytes | None) -> Any:
        if raw is None and self._takes_null:
            return None
        if raw is None:
            name = _name(self._kind)
            raise ValueError(f"it is null instead of {name}. If null values are expected, declare value={name} | None")
        return self._decode(raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return _JsonReader, (self._kind,)


class _Shape:
    """Checks a type and the types in it.

    Each dataclass is visited only once, because a dataclass can contain itself.
    """

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def unreadable(self, kind: Any) -> str | None:
        """Return the reason why this type cannot be read from any JSON, or None if it can be read from some JSON."""
        if isinstance(kind, shapes.CustomType):
            return f"JSON has no type for {_name(kind.cls)}" if kind.cls is not object else None
        if isinstance(kind, shapes.UnionType):  # it is enough if one type of the union is readable
            whys = [self.unreadable(each) for each in kind.types]
            return None if None in whys else whys[0]
        if isinstance(kind, shapes.DataclassType):
            return None if kind.cls in self._seen else self._of_fields(kind)
        parts = [getattr(kind, name) for name in ("item_type", "key_type", "value_type") if hasattr(kind, name)]
        return next(filter(None, map(self.unreadable, [*parts, *getattr(kind, "item_types", ())])), None)

    def _of_fields(self, kind: shapes.DataclassType) -> str | None:
        self._seen.add(kind.cls)
        cls = _class_of(kind.cls)
        if inspect.isabstract(cls):
            return f"{_name(cls)} is abstract"
        unset = {each.name for each in dataclasses.fields(cls) if not each.init}
        for each in kind.fields:
            if each.required and each.name in unset:
                return f"its field {each.name} has init=False and no default"
            if each.required and (why := self.unreadable(each.type)):
                return f"in its field {each.name}, {why}"
        return None


def _class_of(value: Any) -> Any:
    """Return a class unchanged, and `Page` for a generic such as `Page[Order]`. Returns None for anything else."""
    return typing.get_origin(value) or value if isinstance(typing.get_origin(value) or value, type) else None


def _without_none(value: Any) -> Any:
    """Return `Order` for `Order | None`, and anything else unchanged."""
    if typing.get_origin(value) not in (UnionType, typing.Union):
        return value
    kinds = [each for each in typing.get_args(value) if each is not NoneType]
    return kinds[0] if len(kinds) == 1 else value


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or shown(kind)
