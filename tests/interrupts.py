"""Ctrl-C at chosen steps of Headway's own code, and what must not be left behind by it.

Tests with `Interrupts` are slow ones, though they are quick: beside the threads of other tests Python 3.11 once spun
without end in a profile function that had raised, where not even pytest's time limit could strike.
"""

import faulthandler
import gc
import inspect
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

_ENDS_WITHIN = 15.0  # seconds, on a busy machine
_OF_THE_PROCESS = {"headway-admin-clients"}
_OURS = "/src/headway/"
_NOWHERE = ("__del__", "__enter__", "<genexpr>", "fileno")
"""Functions in which Python cannot raise an interrupt, or before whose first step no `with` block has begun."""


class Interrupts:
    """Raises `KeyboardInterrupt` at a step after a function was entered, and again some steps later.

    A step is where Python itself looks for signals: as a function of Headway's begins, and behind a call of a C
    function in one. Where Headway puts Ctrl-C off, none is raised.
    """

    def __init__(self, anchor: Callable[..., Any], first: int, second: int, within: str = _OURS) -> None:
        self._anchor: CodeType = anchor.__code__
        self._first, self._second = first, second
        self._has_begun = False
        self._within = within
        self.raised = 0

    def __enter__(self) -> None:
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        self._has_begun |= frame.f_code is self._anchor
        if self._has_begun and event in ("call", "c_return") and self._is_ours(frame, event) and _is_possible():
            self._first -= 1
            if self._first < 0:
                self.raised += 1
                sys.settrace(self._trace)
                raise KeyboardInterrupt  # Python ends the profiling then

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._is_ours(frame, event) and _is_possible():
            self._second -= 1
            if self._second < 0:
                self.raised += 1
                raise KeyboardInterrupt  # and the tracing

    def _is_ours(self, frame: FrameType, event: str) -> bool:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_GENERATOR:
            return False  # as a generator goes on, an error of a trace passes over its `finally`, which no signal does
        return self._within in code.co_filename and (self._within != _OURS or code.co_name not in _NOWHERE)


def _is_possible() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def two_interrupts(anchor: Callable[..., Any], seed: int) -> Interrupts:
    """Return two interrupts from somewhere on after a function was entered, near its begin more often than far."""
    draw = random.Random(f"{anchor.__qualname__} {seed}")
    first, second = int(2 ** draw.uniform(0, 9)) - 1, int(2 ** draw.uniform(0, 7)) - 1
    print(f"{anchor.__qualname__}, seed {seed}: interrupts after {first} steps, and after {second} calls")
    return Interrupts(anchor, first, second)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if the block leaves a thread of Headway's behind, or handles a signal otherwise than before."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = set(threading.enumerate())
    yield
    after = {number: signal.getsignal(number) for number in handlers}
    assert handlers == after, f"{after} are left as handlers of signals"
    deadline = time.monotonic() + _ENDS_WITHIN
    gc.collect()
    while left := [each for each in set(threading.enumerate()) - before if _must_end(each)]:
        if time.monotonic() > deadline:
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            pytest.fail(f"left behind: {', '.join(sorted(thread.name for thread in left))}")
        left[0].join(0.1)


def _must_end(thread: threading.Thread) -> bool:
    return thread.name.startswith("headway") and thread.name not in _OF_THE_PROCESS
