"""Prepares the standard streams of a command.

A stream can be closed (`>&-`), or have an encoding with few characters.
"""

import codecs
import io
import os
import sys

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
"""How a closed stream is opened: reading stdin or writing stdout fails, and the output to stderr is discarded."""


def hold_streams() -> None:
    """Replace closed standard streams, so that files that are opened later do not get their descriptors.

    Otherwise printed text could be written to a socket to Kafka or to a report. Python sets the stream object to None
    if the stream is closed.
    """
    for number, (name, flags, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            _point(number, flags)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open until the process ends


_IN_ASCII = str.maketrans({"█": "#", "▓": "+", "▒": "=", "░": "-", "…": "...", "·": "."})


def take_any_character() -> None:
    """Replace characters that the encoding of a stream does not have, because Python would raise an error for them.

    Bars are drawn in ASCII. Other characters are escaped as in a Python or JSON string.
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
    """Discard the unwritten output of a descriptor.

    Otherwise Python prints an error when it flushes the stream at exit.
    """
    _point(number, os.O_WRONLY)


def _point(number: int, flags: int) -> None:
    nowhere = os.open(os.devnull, flags)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)
