"""A time limit for each call of a handler.

A coroutine is cancelled. In a thread the error is raised between two steps of Python code: a call that never comes
back to Python, such as one into a library that waits without a time limit, cannot be interrupted by anybody, and keeps
its slot until it returns. So a record never runs twice at a time.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from headway.errors import TimeLimitError
from headway.parallel.dispatch import Job

Call = Callable[[Job], Any]

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING: Any = ctypes.py_object()  # what takes back what was not raised yet


def exceeded(seconds: float) -> TimeLimitError:
    """The error of a call that took longer."""
    return TimeLimitError(f"The handler did not end within its time limit of {seconds:g} s.")


def limit_coroutine(call: Call, seconds: float) -> Call:
    """The same call, failed with `TimeLimitError` if it took longer, whatever it made of being cancelled."""

    async def limited(job: Job) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                result = await call(job)
        except BaseException as error:
            if limit.expired() and not isinstance(error, asyncio.CancelledError):
                raise exceeded(seconds) from error
            raise
        if limit.expired():
            raise exceeded(seconds)
        return result

    return limited


class ThreadLimit:
    """Makes calls, and interrupts those that take longer, from a thread that looks ten times in each limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[int, _Limited] = {}  # the last one of each thread
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="headway-time-limit", daemon=True)
        self._watcher.start()

    def limit(self, call: Call) -> Call:
        """The same call, failed with `TimeLimitError` if it was interrupted, whatever it made of that."""

        def limited(job: Job) -> Any:
            running = _Limited(time.monotonic() + self._seconds)
            try:
                try:
                    self._calls[threading.get_ident()] = running
                    return call(job)
                finally:
                    running.end()
            except _InterruptionError:
                raise exceeded(self._seconds) from None

        return limited

    def close(self) -> None:
        """Interrupt nothing any more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, max(0.01, self._seconds / 10))):
            now = time.monotonic()
            for thread, running in list(self._calls.items()):
                if running.deadline <= now:
                    running.interrupt(thread)


class _InterruptionError(BaseException):
    """Raised in a handler's thread; no `except Exception` of a handler's takes it for its own."""


class _Limited:
    """One call. It is ended by its thread or by the watcher, whoever takes the token, so none is raised after it."""

    __slots__ = ("_interrupted", "_token", "deadline")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._token = [True]
        self._interrupted = False

    def end(self) -> None:
        """For the thread: raises if the watcher came before it, and from then on nothing is raised any more."""
        if not self._take():
            while not self._interrupted:  # it may be raised in here, or have been raised before
                time.sleep(0.001)
            _raise_in_thread(threading.get_ident(), _NOTHING)
            raise _InterruptionError

    def interrupt(self, thread: int) -> None:
        """For the watcher: raise in the thread, unless the call has ended."""
        if self._take():
            _raise_in_thread(thread, _InterruptionError)
            self._interrupted = True

    def _take(self) -> bool:
        try:
            self._token.pop()
        except IndexError:
            return False
        return True
