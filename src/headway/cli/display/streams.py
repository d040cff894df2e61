"""The standard streams of a command: one can be missing, as by `>&-`, or have an encoding with few characters."""

import codecs
import io
import os
import sys

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
"""For each descriptor its replacement's mode: reading stdin or writing stdout is refused, stderr is silent."""


def hold_streams() -> None:
    """Replace standard streams that are closed: a file that is opened later could get their numbers.

    Then Kafka's answers and a page of a report would be mixed with the printed text, and Python has no such stream.
    """
    for number, (name, flags, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            _point(number, flags)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


_IN_ASCII = str.maketrans({"█": "#", "▓": "+", "▒": "=", "░": "-", "…": "...", "·": "."})


def take_any_character() -> None:
    """Write what a stream's encoding lacks in other characters, where Python would end with an error.

    Bars are drawn with ASCII, and other characters are written as in a string of Python or JSON.
    """
    codecs.register_error("headway", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="headway")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def silence(number: int) -> None:
    """Send the unwritten output of a descriptor nowhere, or Python complains when it flushes at its end."""
    _point(number, os.O_WRONLY)


def _point(number: int, flags: int) -> None:
    nowhere = os.open(os.devnull, flags)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)
