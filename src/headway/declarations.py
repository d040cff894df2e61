"""Checks of the functions, numbers and choices that users pass in.

A wrong argument is refused at once, with a clear error. Without these checks, the argument would cause an error only at
the first record, perhaps long after the start.
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

_MOST_SHOWN = 200  # an error message shows at most this many characters of a value
_MADE_OF_BYTES = (int, float, bytes, bytearray, memoryview)
_MARKS_OF_FIELDS = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__", "_fields")

unusable_character = re.compile("[\0\ud800-\udfff]").search
"""Matches a character that confluent-kafka cannot handle: it truncates text at a NUL, and crashes on a surrogate."""


def check_number(name: str, value: Any, at_least: float, unit: str = "") -> None:
    """Raise `ConfigError` if a value is not a number or is less than `at_least`."""
    if not is_number(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be a number, at least {at_least}.")
    if not value >= at_least:  # not `value < at_least`, which is False for NaN
        raise ConfigError(f"{name} is {value}{unit}; it must be at least {at_least}.")


def check_whole(name: str, value: Any, at_least: int, unit: str = "") -> None:
    """Raise `ConfigError` if a value is not a whole number or is less than `at_least`."""
    if not is_whole(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be a whole number, at least {at_least}.")
    check_number(name, value, at_least, unit)


def check_place(name: str, value: Any) -> None:
    """Raise `ConfigError` unless a value is a whole number from 0 to 2**63 - 1, as offsets and timestamps are."""
    check_whole(name, value, 0)
    if value > _LARGEST_PLACE:
        raise ConfigError(f"{name} is {shown(value)}; it must be at most {_LARGEST_PLACE}.")


def check_above_zero(name: str, value: Any) -> None:
    """Raise `ConfigError` unless a value is a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ConfigError(f"{name} is {shown(value)}; it must be above 0 and finite, or left out.")


_LARGEST_PLACE = 2**63 - 1
# About eleven days, in seconds. This limit exists because Python's threads and librdkafka do not accept arbitrarily
# long timeouts.
_LONGEST_TIMEOUT = 1_000_000.0


def checked_timeout(timeout: Any) -> float:
    """Return a timeout in seconds that every wait accepts: negative values become 0, and infinity about eleven days.

    Raises `ConfigError` if the value is not a number.
    """
    if not is_number(timeout) or timeout != timeout:  # noqa: PLR0124 - NaN is not equal to itself
        raise ConfigError(
            f"timeout is {shown(timeout)}; it must be a number of seconds. Use 0 to return without "
            "waiting, or math.inf to wait as long as it takes."
        )
    return float(min(max(timeout, 0), _LONGEST_TIMEOUT))


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise `ConfigError` if a value is not one of the choices."""
    if value not in choices:
        written = [repr(str(each)) if isinstance(each, str) else str(each) for each in choices if each]
        raise ConfigError(f"{name} is {shown(value)}; choose one of {', '.join(written)}.")


def check_flag(name: str, value: Any) -> None:
    """Raise `ConfigError` unless a value is True or False. Without this check, the text "no" would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}; it must be True or False.")


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Raise `ConfigError` unless a value is an instance of the class `kind`."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}; it must be {example}.")


def check_function(name: str, function: Any, parameters: Sequence[str], advice: str = "") -> None:
    """Raise `ConfigError` unless a value is a plain function that can be called with these arguments.

    `advice` is a sentence that is appended to the error.
    """
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

    Most classes of the standard library are refused even if bytes are a valid argument: `str`, for example, would
    return "b'…'".
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
    """Return whether a value is an int or a float; True and False do not count as numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Return whether a value is an int; True and False do not count as numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def takes(function: Callable[..., Any], count: int, *, as_promised: bool = False) -> bool:
    """Return whether a function can be called with this many positional arguments; True if its signature is not known.

    A wrapper that was created with `functools.wraps` reports the signature of the wrapped function, which may differ
    from the wrapper's own signature. If `as_promised` is True, this function checks the reported signature, and
    otherwise the wrapper's own.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=as_promised)
    except ValueError:  # a builtin without a signature, a method without `self`, or a partial with too many arguments
        inner = _without_arguments(function)
        return not (inspect.isfunction(inner) or inspect.ismethod(inner) or inspect.isfunction(type(inner).__call__))
    except Exception:  # a `__signature__` that the user defined can raise any error
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
    """Return whether a function yields, or is an object with such a `__call__`. Async generators are included."""
    return _is(inspect.isgeneratorfunction, function) or is_async_generator_function(function)


def runs_nothing_when_called(function: Callable[..., Any]) -> bool:
    """Return whether a call would only create a coroutine or a generator, without running the function's body."""
    return is_coroutine_function(function) or is_generator_function(function)


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    function = _without_arguments(function)
    return kind(function) or kind(type(function).__call__)


def called(function: Any) -> str:
    """Return a function's name for error messages.

    The arguments of a partial are left out, because they can be secrets.
    """
    function = _without_arguments(function)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def shown(value: object) -> str:
    """Return the text of a value for error messages. A long text is shortened, and an error in `__repr__` is caught."""
    try:
        text = repr(value)
    except ValueError:
        return "a number with thousands of digits"
    except Exception:  # a `__repr__` that the user defined can raise any error
        return f"of the type {type(value).__qualname__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def _without_arguments(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function
