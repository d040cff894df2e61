"""What Java and Spark's Python workers say on stderr, but for what is said of every session and means nothing.

Java warns of a module that Spark asks for at each start. And Spark ends Python workers that were idle for a minute by
closing their connection, over which each of them prints a stack trace.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_HARMLESS = re.compile(
    r"""WARNING:\ Using\ incubator\ modules:\ jdk\.incubator\.vector\n
    | Traceback\ \(most\ recent\ call\ last\):\n
      (?: \ \ File\ ".*/pyspark/daemon\.py",\ line\ .*\n (?: \ \ \ \ .*\n )* )+
      BrokenPipeError:\ .*\n""",
    re.VERBOSE,
)
_BEGINS = "Traceback (most recent call last):"
_OURS = 2


@contextmanager
def filtered_stderr() -> Iterator[int]:
    """A descriptor to start a process with, as its stderr; what is worth reading comes out of our own."""
    readable, writable = os.pipe()
    threading.Thread(target=_pass_on, args=(readable,), name="headway-java-stderr", daemon=True).start()
    try:
        yield writable
    finally:
        os.close(writable)


def _pass_on(readable: int) -> None:
    with open(readable, encoding="utf-8", errors="replace") as lines:
        for text in worth_reading(lines):
            os.write(_OURS, text.encode())


def worth_reading(lines: Iterable[str]) -> Iterator[str]:
    """The lines without harmless ones; a stack trace is held back until it is clear which it is.

    >>> list(worth_reading(["WARNING: Using incubator modules: jdk.incubator.vector\\n", "out of memory\\n"]))
    ['out of memory\\n']
    """
    held = ""
    for line in lines:
        held += line
        if held.startswith(_BEGINS) and (held == line or line.startswith(" ")):
            continue
        if not _HARMLESS.fullmatch(held):
            yield held
        held = ""
    if held:
        yield held
