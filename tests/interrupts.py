"""Ctrl-C at chosen steps of Headway's own code, and what must not be left behind by it."""

import _thread
import faulthandler
import gc
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

_ENDS_WITHIN = 15.0  # seconds, on a busy machine
_OF_THE_PROCESS = {"headway-admin-clients"}
_OURS = "/src/headway/"


class Interrupts:
    """Sends SIGINT to this process at a step after a function was entered, and again some steps later.

    A step is an instruction of Python's in a function of Headway's. The signal is a real one: Python handles it where
    it next looks for signals, and code that puts Ctrl-C off gets it later. Nothing is raised in a trace function, which
    Python would not survive everywhere: a `finally` is passed over, or the process spins.
    """

    def __init__(self, anchor: Callable[..., Any], first: int, second: int, within: str = _OURS) -> None:
        self._anchor: CodeType = anchor.__code__
        self._left = [second, first]
        self._has_begun = False
        self._within = within
        self.raised = 0

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        self._left.clear()
        sys.settrace(None)
        signal.signal(signal.SIGINT, self._before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._has_begun |= frame.f_code is self._anchor
        if self._within not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if self._has_begun and self._left and event in ("call", "opcode"):
            self._left[-1] -= 1
            if self._left[-1] < 0:
                self._left.pop()
                sys.settrace(None)  # or the signal would be handled as this function is called next
                # Not a call, behind which Python looks for signals: it would be handled in this function.
                defaultdict[int, None](partial(_thread.interrupt_main, signal.SIGINT))[0]
        return self._trace

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.raised += 1
        if self._left:
            sys.settrace(self._trace)
        if frame is None or frame.f_code is not _EXIT:  # raised as `__exit__` begins, it would leave this handler set
            raise KeyboardInterrupt


_EXIT = Interrupts.__exit__.__code__


def two_interrupts(anchor: Callable[..., Any], seed: int) -> Interrupts:
    """Return two interrupts from somewhere on after a function was entered, near its begin more often than far."""
    draw = random.Random(f"{anchor.__qualname__} {seed}")
    first, second = int(2 ** draw.uniform(0, 13)) - 1, int(2 ** draw.uniform(0, 11)) - 1
    print(f"{anchor.__qualname__}, seed {seed}: interrupts after {first} steps, and {second} steps later")
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
