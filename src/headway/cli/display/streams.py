"""The standard streams of a command that is started without one of them, as by `>&-`."""

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


def silence(number: int) -> None:
    """Send the unwritten output of a descriptor nowhere, or Python complains when it flushes at its end."""
    _point(number, os.O_WRONLY)


def _point(number: int, flags: int) -> None:
    nowhere = os.open(os.devnull, flags)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)
