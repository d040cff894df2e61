"""Checks of the functions, numbers and choices that users pass in; a wrong one is refused at once, with a clear error.

Otherwise it would fail only at the first record, perhaps long after the start.
"""

import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from headway.errors import ConfigError

_MOST_SHOWN = 200  # characters
_MADE_OF_BYTES = (int, float, bytes, bytearray, memoryview)
_MARKS_OF_FIELDS = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__", "_fields")

unusable_character = re.compile("[\0\ud800-\udfff]").search
"""Finds a character that the binding cannot take: it cuts text off at NUL, and a surrogate ends the process."""


def check_number(name: str, value: Any, at_least: float, unit: str = "") -> None:
    """Raise `ConfigError` for a value that is not a number, or below the bound."""
    if not is_number(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be a number, at least {at_least}.")
    if not value >= at_least:  # written this way because NaN compares False, too
        raise ConfigError(f"{name} is {value}{unit}; it must be at least {at_least}.")


def check_whole(name: str, value: Any, at_least: int, unit: str = "") -> None:
    """Raise `ConfigError` for a value that is not a whole number, or below the bound."""
    if not is_whole(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be a whole number, at least {at_least}.")
    check_number(name, value, at_least, unit)


def check_place(name: str, value: Any) -> None:
    """Raise `ConfigError` unless a value can be an offset, or a time in ms: a whole number of up to 63 bits."""
    check_whole(name, value, 0)
    if value > _LARGEST_PLACE:
        raise ConfigError(f"{name} is {shown(value)}; it must be at most {_LARGEST_PLACE}.")


def check_above_zero(name: str, value: Any) -> None:
    """Raise `ConfigError` for a value that is not a number above 0, or not finite."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ConfigError(f"{name} is {shown(value)}; it must be above 0 and finite, or left out.")


_LARGEST_PLACE = 2**63 - 1
_LONGEST_TIMEOUT = (
    1_000_000.0  # seconds, some eleven days; threads and librdkafka do not accept arbitrarily large numbers
)


def checked_timeout(timeout: Any) -> float:
    """Return a time-out in seconds that every kind of wait accepts: a negative one becomes 0, infinity eleven days.

    Raises `ConfigError` for a value that is not a number.
    """
    if not is_number(timeout) or timeout != timeout:  # noqa: PLR0124 - NaN is not itself
        raise ConfigError(
            f"timeout is {shown(timeout)}; it must be a number of seconds. Give 0 not to wait, or math.inf to wait as "
            "long as it takes."
        )
    return float(min(max(timeout, 0), _LONGEST_TIMEOUT))


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise `ConfigError` for a value that is not one of the choices."""
    if value not in choices:
        written = [repr(str(each)) if isinstance(each, str) else str(each) for each in choices if each]
        raise ConfigError(f"{name} is {shown(value)}; choose one of {', '.join(written)}.")


def check_flag(name: str, value: Any) -> None:
    """Raise `ConfigError` for a value that is neither True nor False, since any text would count as True."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; it must be True or False.")


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Raise `ConfigError` for a value that is not an instance of a class."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}; it must be {example}.")


def check_function(name: str, function: Any, parameters: Sequence[str], advice: str = "") -> None:
    """Raise `ConfigError` unless a value is a plain function that takes these arguments; `advice` is added to it."""
    call = f"({', '.join(parameters)})"
    more = f" {advice}" if advice else ""
    if not callable(function):
        raise ConfigError(f"{name} is {shown(function)}; it must be a function, called with {call}.{more}")
    if runs_nothing_when_called(function):
        raise ConfigError(
            f"{name} is {called(function)}, an async def or a generator function, so a call would run nothing. Give a "
            f"plain function, called with {call}.{more}"
        )
    if not takes(function, len(parameters)):
        raise ConfigError(f"{name} is {called(function)}, which cannot be called with {call}.{more}")


def check_reader(name: str, reader: Any, advice: str) -> None:
    """Raise `ConfigError` unless a value is a function or class that creates an object from the bytes of a record.

    A class of the standard library is refused even if it can be called: `str`, for example, would return "b'…'".
    """
    if typing.get_origin(reader) is not None or (isinstance(reader, type) and not _is_made_of_bytes(reader)):
        raise ConfigError(f"{name}={called(reader)} cannot create an instance from the bytes of a record. {advice}")
    if not callable(reader) or not takes(reader, 1):
        what = called(reader) if callable(reader) else shown(reader)
        raise ConfigError(f"{name}={what} cannot be called with the bytes of a record. {advice}")
    if runs_nothing_when_called(reader):
        raise ConfigError(
            f"{name}={called(reader)} is an async def or a generator function, so a call would run nothing. {advice}"
        )


def _is_made_of_bytes(kind: type) -> bool:
    if kind.__module__ in sys.stdlib_module_names:
        return kind in _MADE_OF_BYTES
    if issubclass(kind, Enum):
        return any(isinstance(member.value, bytes) for member in kind)
    has_fields = typing.is_typeddict(kind) or any(hasattr(kind, mark) for mark in _MARKS_OF_FIELDS)
    return not has_fields and not inspect.isabstract(kind)


def is_number(value: object) -> bool:
    """Return whether a value is a plain number; True and False do not count."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number; True and False do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def takes(function: Callable[..., Any], count: int, *, as_promised: bool = False) -> bool:
    """Return whether a function can be called with this many positional arguments; True if that cannot be known.

    With `functools.wraps`, a decorated function claims the signature of the function that it wraps. That claim counts
    only with `as_promised`.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=as_promised)
    except ValueError:  # a builtin without a signature, a method without even `self`, or a partial of too much
        inner = _without_arguments(function)
        return not (inspect.isfunction(inner) or inspect.ismethod(inner) or inspect.isfunction(type(inner).__call__))
    except Exception:  # from a user's own `__signature__`
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether a function is an `async def`, or an object with such a `__call__`."""
    return _is(inspect.iscoroutinefunction, function)


def is_async_generator_function(function: Callable[..., Any]) -> bool:
    """Return whether a function is an `async def` that yields, or an object with such a `__call__`."""
    return _is(inspect.isasyncgenfunction, function)


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Return whether a function yields, or is an object whose `__call__` does."""
    return _is(inspect.isgeneratorfunction, function) or is_async_generator_function(function)


def runs_nothing_when_called(function: Callable[..., Any]) -> bool:
    """Return whether a call runs nothing, but only makes something to await or to iterate over."""
    return is_coroutine_function(function) or is_generator_function(function)


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    function = _without_arguments(function)
    return kind(function) or kind(type(function).__call__)


def called(function: Any) -> str:
    """Return the name of a function for use in errors: without its arguments, which can be secrets."""
    function = _without_arguments(function)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def shown(value: object) -> str:
    """Return a value as errors show it: shortened, and safe from anything that its class does."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    except Exception:  # from a user's own class
        return f"of the type {type(value).__qualname__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def _without_arguments(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function
