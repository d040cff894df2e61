"""Reads lines of input and parses them into records."""

import itertools
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

import click

_END = b"\r\n"
_CHUNK = 1_048_576


class LinePosition(NamedTuple):
    """The file and number of a line, for messages."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{'stdin' if self.file == '-' else self.file}, line {self.number}"


class Draft(NamedTuple):
    """A record to send."""

    value: bytes
    key: bytes | None
    level: int


Parse = Callable[[bytes], Draft | None]
"""Parses a line into a record, or into None if it is empty. Raises `ValueError` with the mistake in the line."""


class LongLine(NamedTuple):
    """A line longer than the limit, which was skipped."""

    size: int


def read_lines(files: Iterable[str], longest: int) -> Iterator[tuple[LinePosition, bytes | LongLine]]:
    """Yield the lines of the files in turn; `-` is stdin. A line longer than `longest` bytes is not kept in memory."""
    for file in files:
        with click.open_file(file, "rb") as lines:
            for number in itertools.count(1):
                line = lines.readline(longest + len(_END))
                if not line:
                    break
                is_whole = len(line.rstrip(_END)) <= longest
                yield LinePosition(file, number), line if is_whole else LongLine(len(line) + _skip_rest(lines, line))


def _skip_rest(lines: IO[bytes], chunk: bytes) -> int:
    """Read to the end of the line that begins with this chunk, and return how many bytes followed the chunk."""
    size = 0
    while chunk and not chunk.endswith(b"\n"):
        chunk = lines.readline(_CHUNK)
        size += len(chunk)
    return size


def size_of_files(files: Iterable[str]) -> int | None:
    """Return the total size of the files, or None if one of them is a pipe or a terminal."""
    try:
        found = [os.fstat(sys.stdin.fileno()) if file == "-" else os.stat(file) for file in files]
    except (OSError, ValueError):
        return None
    return sum(each.st_size for each in found) if all(stat.S_ISREG(each.st_mode) for each in found) else None


def text_lines(level: int) -> Parse:
    r"""Return a parser that makes each line the value of a record.

    >>> text_lines(2)(b"ship at once\n")
    Draft(value=b'ship at once', key=None, level=2)
    """
    return lambda line: Draft(line.rstrip(b"\r\n"), None, level)


class JsonLines:
    """Parses lines of JSON. A line is sent unchanged. The record's key and level can be taken from the line's fields.

    A line in which the level field is missing or null gets the default level. A line without the key field is an error,
    because the records of a key must keep their order. If the key field is null, the record has no key. A key that is
    not a string is sent as JSON. Empty lines are skipped.
    """

    def __init__(self, level: int, levels: int, level_field: str | None, key_field: str | None) -> None:
        self._default = level
        self._levels = levels
        self._level_field = level_field
        self._key_field = key_field

    def __call__(self, line: bytes) -> Draft | None:
        line = line.strip()
        if not line:
            return None
        value = _load(line)
        if (self._level_field or self._key_field) and not isinstance(value, dict):
            raise ValueError(f"it is {_kind(value)}, not a JSON object with fields")
        return Draft(line, self._key(value), self._level(value))

    def _key(self, value: Any) -> bytes | None:
        if self._key_field is None:
            return None
        if self._key_field not in value:
            raise ValueError(f"it has no field {self._key_field!r} for the key")
        key = value[self._key_field]
        if key is None:
            return None
        return (key if isinstance(key, str) else json.dumps(key, separators=(",", ":"))).encode()

    def _level(self, value: Any) -> int:
        level = None if self._level_field is None else value.get(self._level_field)
        if level is None:
            return self._default
        if type(level) is not int or not 0 <= level < self._levels:
            raise ValueError(
                f"its field {self._level_field!r} is {json.dumps(level)}, but the levels are 0 to {self._levels - 1}"
            )
        return level


def _load(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at column {error.colno})") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
