"""Time limits for calls of handlers in threads and coroutines. The pool of processes kills the process instead.

A coroutine is cancelled, and cancelled again if it suppresses that. In a thread, an error is raised between two steps
of Python code. A call that does not return to Python, such as one into a library that waits forever, cannot be
interrupted. It keeps its slot until it returns, so that a record never runs twice at a time.
"""

import asyncio
import ctypes
import math
import threading
import time
import types
import weakref
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from headway.errors import TimeLimitError
from headway.execution.jobs import Job
from headway.runtime.flag import Flag

JobCall = Callable[[Job], Any]

raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING: Any = ctypes.py_object()  # takes back an error that was not raised yet


def exceeded(seconds: float) -> TimeLimitError:
    """Return the error for a call that took longer."""
    return TimeLimitError(f"The handler did not end within its time limit of {seconds:g} s.")


def limit_coroutine(call: JobCall, seconds: float) -> JobCall:
    """Wrap a call so that it fails with `TimeLimitError` if it takes longer, even if it handles its cancellation."""

    async def limited(job: Job) -> Any:
        limit = _CoroutineLimit(seconds)
        try:
            result = await limit.run(call(job))
        except BaseException as error:
            if limit.end():
                raise exceeded(seconds) from error
            raise
        if limit.end():
            raise exceeded(seconds)
        return result

    return limited


class _CoroutineLimit:
    """The limit of one call of a coroutine function, in the task that makes the call.

    While the `CancelledError` object exists, the handler is cleaning up, and it is not cancelled again. If the object
    is freed before the call ends, the handler has suppressed it, and is cancelled again after the next limit.
    """

    def __init__(self, seconds: float) -> None:
        task: Any = asyncio.current_task()
        self._task = task
        self._seconds = seconds
        self._cancelling = task.cancelling()
        self._cancels = 0
        self._is_due = False  # True between our call of `cancel` and the CancelledError that follows
        self._thrown: weakref.ref[BaseException] | None = None
        self._timer = task.get_loop().call_later(seconds, self._interrupt)

    def _interrupt(self) -> None:
        if self._thrown is None or self._thrown() is None:
            self._is_due = True
            self._cancels += 1
            self._task.cancel()
        self._timer = self._task.get_loop().call_later(self._seconds, self._interrupt)

    @types.coroutine
    def run(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Do what `await` does, but raise our own kind of `CancelledError` when the limit has cancelled the task."""
        steps: Any = awaitable.__await__()
        step: Any = partial(next, steps)
        while True:
            try:
                awaited = step()
            except StopIteration as stop:
                return stop.value
            step = None  # it would keep the thrown error alive
            try:
                step = partial(steps.send, (yield awaited))
            except asyncio.CancelledError as error:
                step = partial(steps.throw, self._ours() if self._is_due else error)
            except BaseException as error:
                step = partial(steps.throw, error)

    def _ours(self) -> BaseException:
        self._is_due = False
        ours = _LimitCancelledError()
        self._thrown = weakref.ref(ours)
        return ours

    def end(self) -> bool:
        """End the limit. Returns whether only the limit, and nobody else, has cancelled the call."""
        self._timer.cancel()
        for _ in range(self._cancels):
            self._task.uncancel()
        return self._cancels > 0 and self._task.cancelling() <= self._cancelling


class _LimitCancelledError(asyncio.CancelledError):
    """A cancellation by the limit. When the object is freed, no code is handling it any more."""


class ThreadLimit:
    """A limit for calls in threads. Its own thread checks ten times within the limit, and interrupts late calls."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.calls: dict[int, LimitedCall] = {}  # the last call of each thread
        self._closed = Flag()
        self._watcher = threading.Thread(target=self._watch, name="headway-time-limit", daemon=True)
        self._watcher.start()

    def limit(self, call: JobCall) -> JobCall:
        """Wrap a call so that it fails with `TimeLimitError` if it is interrupted, even if it handles that."""

        def limited(job: Job) -> Any:
            running = LimitedCall(self._seconds)
            try:
                try:
                    self.calls[threading.get_ident()] = running
                    return call(job)
                finally:
                    running.end()
            except _InterruptionError:
                running.ended = True  # the interruption can have come before `end` set it
                raise exceeded(self._seconds) from None

        return limited

    def close(self) -> None:
        """Stop checking calls."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, max(0.01, self._seconds / 10))):
            now = time.monotonic()
            for thread, running in list(self.calls.items()):
                if running.deadline <= now:
                    running.interrupt(thread)


class LimitedCall:
    """One call with a limit.

    The thread of the call and the watcher both first set their own flag, and then check the flag of the other. So a
    call is never interrupted after its end.
    """

    __slots__ = ("_interrupted", "_interrupting", "_seconds", "deadline", "ended")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._interrupting = self._interrupted = self.ended = False
        self.allow_another_limit()

    def allow_another_limit(self) -> None:
        """Let the call run for another limit."""
        self.deadline = time.monotonic() + self._seconds

    def end(self) -> None:
        """Note, in the thread of the call, that it has ended. Raises if the call was interrupted, and only here."""
        self.ended = True
        while self._interrupting:
            time.sleep(0.001)
        if self._interrupted:
            raise_in_thread(threading.get_ident(), _NOTHING)
            raise _InterruptionError

    def interrupt(self, thread: int) -> None:
        """Raise an error in the thread of the call, unless it has ended. For the watcher."""
        self._interrupting = True
        if not self.ended:
            self.deadline = math.inf
            self._interrupted = True
            raise_in_thread(thread, type("_InterruptionError", (_InterruptionError,), {"call": self}))
        self._interrupting = False


class _InterruptionError(BaseException):
    """The interruption of a handler's thread. A handler's `except Exception` does not catch it.

    The object exists while the handler cleans up. If it is freed before the call ends, it was suppressed: by a bare
    `except`, or by Python, which drops errors raised in `__del__` or in a callback of the garbage collector. The call
    can then be interrupted again.
    """

    call: LimitedCall | None = None

    def __del__(self) -> None:
        if self.call:
            self.call.allow_another_limit()
