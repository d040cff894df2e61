"""Reads a client's settings from a file with lines of the form key=value.

A value can be a PEM text of several lines.
"""

import logging
import re
from collections import deque
from pathlib import Path

from headway.errors import ConfigError

log = logging.getLogger(__name__)

_BEGIN = "-----BEGIN "
_END = "-----END "
_BLOCK = re.compile(r"(-----BEGIN [^-]+-----)(.*?)(-----END [^-]+-----)", re.DOTALL)
_QUOTES = ("'", '"')

_Lines = deque[tuple[int, str]]
"""The numbered lines of the file that have not been read yet."""


def read_properties(file: Path) -> dict[str, str]:
    r"""Return the settings in a file. Empty lines and lines that begin with # or ! are ignored.

    A value that begins with `-----BEGIN ` is a PEM text. The text extends over any number of lines to its `-----END
    …-----`. If it is a certificate, the text includes the other certificates of the chain. A PEM text can also be
    written on one line, with `\n` or spaces in place of the line breaks.

    Raises `ConfigError` if the file or one of its lines cannot be read. The error names the line's number but does not
    show its text, which can be a secret.
    """
    lines: _Lines = deque(enumerate(map(str.strip, _text_of(file).splitlines()), 1))
    settings: dict[str, str] = {}
    while lines:
        number, line = lines.popleft()
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigError(f"Line {number} of {file} is not key=value. Correct it, or make it a comment with #.")
        if key.endswith(".pem") and value in ("", "\\", *_QUOTES) and lines:
            number, value = lines.popleft()
        if value.lstrip("".join(_QUOTES)).startswith(_BEGIN):
            value = _pem(value, lines, f"in line {number} of {file}")
        elif len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
            log.warning(
                "The quotes around the value of %s in line %d of %s are read as part of the value. Remove them unless "
                "they belong to it.",
                *(key, number, file),
            )
        settings[key] = value
    return settings


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The settings in {file} cannot be read: {reason}.") from None


def _pem(first: str, lines: _Lines, place: str) -> str:
    """Return the PEM text that begins with the line `first`, and remove the other lines of the text from `lines`."""
    parts = [first]
    while lines and (_END not in parts[-1] or _follows(lines)):
        parts.append(lines.popleft()[1])
    if lines and lines[0][1] in _QUOTES:
        lines.popleft()
    # Files for Kafka's own tools end each line of a PEM text with a backslash. Quotes around the text are removed.
    text = "\n".join(part.rstrip("\\").rstrip() for part in parts).replace("\\n", "\n").replace("\\r", "")
    if text.count(_BEGIN) != len(blocks := _BLOCK.findall(text)):
        raise ConfigError(f"The PEM text that begins {place} is not complete. Add its last line, {_END}…-----.")
    return "".join(begin + _body(body) + end + "\n" for begin, body, end in blocks)


def _follows(lines: _Lines) -> bool:
    """Return whether another certificate of the chain follows, and remove the empty lines before it."""
    while lines and not lines[0][1]:
        lines.popleft()
    return bool(lines) and lines[0][1].startswith(_BEGIN)


def _body(text: str) -> str:
    """Return the text between the first and last lines of a PEM text, with a line break before and after it."""
    text = text.strip()
    return "\n" + (text if "\n" in text else "\n".join(text.split())) + "\n"
