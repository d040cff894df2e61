"""Removes from stderr the harmless messages of Java and of Spark's Python workers, which every session prints.

At each start, Java warns about a module that Spark requests. And if a Python worker was idle for a minute, or its
stream is stopped, Spark closes the connection to the worker. The worker then ends and prints stack traces.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_BEGINS = "Traceback (most recent call last):\n"
_ENDS = ("BrokenPipeError: ", "EOFError\n")
_BETWEEN = ("\n", "During handling of the above exception, another exception occurred:\n")
_HARMLESS = re.compile(
    rf"""WARNING:\ Using\ incubator\ modules:\ jdk\.incubator\.vector\n
    | (?: (?: {"|".join(re.escape(line) for line in _BETWEEN)} )*
          (?: {re.escape(_BEGINS)}
            | \ \ File\ "(?: .*/pyspark/(?: daemon | serializers | worker_util
                                          | sql/streaming/python_streaming_source_runner )\.py
                            | .*/(?: socket | contextlib )\.py | <frozen\ runpy> )",\ line\ .*\n (?: \ \ \ \ .*\n )* )+
          (?: BrokenPipeError:\ .*\n | EOFError\n ) )+""",
    re.VERBOSE,
)
_OURS = 2


@contextmanager
def filtered_stderr() -> Iterator[int]:
    """Yield a file descriptor to use as the stderr of a new process.

    All that the new process writes to it is copied to the stderr of this process, except for harmless messages.
    """
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
    r"""Yield the text of these lines without harmless messages.

    Stack traces are held back until it is clear whether they are harmless. The stack traces of workers that end at the
    same time are interleaved, and some are incomplete.

    >>> list(worth_reading(["WARNING: Using incubator modules: jdk.incubator.vector\n", "out of memory\n"]))
    ['out of memory\n']
    """
    held, unended = "", 0
    dropped = chained = False  # `chained`: the next stack trace continues one that was yielded
    for line in lines:
        if line == _BEGINS:
            unended += 1
        elif held and line.startswith(_ENDS):
            unended -= 1
        elif not (held and line.startswith(" ")) and not (dropped and line in _BETWEEN):
            yield from _unless_harmless(held)
            yield from _unless_harmless(line)
            held, unended, dropped = "", 0, False
            chained = line in _BETWEEN and (chained or line != "\n")
            continue
        held += line
        if not unended and line not in _BETWEEN:
            worth = [held] if chained else _unless_harmless(held)
            yield from worth
            held, dropped, chained = "", not worth, False
    yield from _unless_harmless(held)


def _unless_harmless(text: str) -> list[str]:
    return [] if not text or _HARMLESS.fullmatch(text) else [text]
