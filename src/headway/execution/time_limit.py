"""Enforces time limits on handlers that run in threads or as coroutines. The pool of processes has its own limit.

A coroutine that exceeds its limit is cancelled. If the coroutine suppresses the cancellation, it is cancelled again. In
a thread, an exception is raised between two bytecode instructions. Code that does not return to the interpreter, such
as a library call that waits forever, cannot be interrupted. The handler call then keeps its slot until it returns, so
that no record is handled twice at the same time.
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
# A null pointer, which withdraws an exception that was set for a thread but not raised yet.
_NOTHING: Any = ctypes.py_object()


def exceeded(seconds: float) -> TimeLimitError:
    """Make the error for a call that exceeded its time limit."""
    return TimeLimitError(f"The handler did not end within its time limit of {seconds:g} s.")


def limit_coroutine(call: JobCall, seconds: float) -> JobCall:
    """Wrap a call so that it fails with `TimeLimitError` after the limit, even if it suppresses the cancellation."""

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
    """Limits one call of a coroutine function, in the task that makes the call.

    While the `CancelledError` object that was raised in the handler exists, the handler is assumed to be cleaning up
    and is not cancelled again. If the object is freed before the call ends, the handler has suppressed the
    cancellation. The handler is then cancelled again after another full limit.
    """

    def __init__(self, seconds: float) -> None:
        task: Any = asyncio.current_task()
        self._task = task
        self._seconds = seconds
        self._cancelling = task.cancelling()
        self._cancels = 0
        self._is_due = False  # True between our call of `cancel` and the CancelledError that the call causes
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
        """Do what `await` does, but raise `_LimitCancelledError` in the handler if the limit has cancelled the task."""
        steps: Any = awaitable.__await__()
        step: Any = partial(next, steps)
        while True:
            try:
                awaited = step()
            except StopIteration as stop:
                return stop.value
            step = None  # otherwise this variable would keep the raised error alive
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
        """End the limit. Returns True if the limit has cancelled the call and no other code has cancelled it."""
        self._timer.cancel()
        for _ in range(self._cancels):
            self._task.uncancel()
        return self._cancels > 0 and self._task.cancelling() <= self._cancelling


class _LimitCancelledError(asyncio.CancelledError):
    """The cancellation of a call by its limit. Once the object is freed, no code is handling the cancellation."""


class ThreadLimit:
    """Limits calls in threads.

    Ten times within the limit, a watcher thread checks all calls and interrupts late calls.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.calls: dict[int, LimitedCall] = {}  # the latest call of each thread, by the thread's identifier
        self._closed = Flag()
        self._watcher = threading.Thread(target=self._watch, name="headway-time-limit", daemon=True)
        self._watcher.start()

    def limit(self, call: JobCall) -> JobCall:
        """Wrap a call so that it fails with `TimeLimitError` if interrupted, even if it suppresses the interruption."""

        def limited(job: Job) -> Any:
            running = LimitedCall(self._seconds)
            try:
                try:
                    self.calls[threading.get_ident()] = running
                    return call(job)
                finally:
                    running.end()
            except _InterruptionError:
                running.ended = True  # the interruption may have been raised before `end` set `ended`
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

    The thread that makes the call sets `ended` and then checks `_interrupting`. The watcher sets `_interrupting` and
    then checks `ended`. So the call is never interrupted after its end.
    """

    __slots__ = ("_interrupted", "_interrupting", "_seconds", "deadline", "ended")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._interrupting = self._interrupted = self.ended = False
        self.allow_another_limit()

    def allow_another_limit(self) -> None:
        """Set the deadline to a full limit from now."""
        self.deadline = time.monotonic() + self._seconds

    def end(self) -> None:
        """Record that the call has ended. Raises an `_InterruptionError` if the call was interrupted.

        Must be called by the thread that made the call. Afterwards, no interruption of this call is raised in that
        thread.
        """
        self.ended = True
        while self._interrupting:
            time.sleep(0.001)
        if self._interrupted:
            raise_in_thread(threading.get_ident(), _NOTHING)
            raise _InterruptionError

    def interrupt(self, thread: int) -> None:
        """Raise an error in the thread that makes the call, unless the call has ended.

        Used only by the watcher thread.
        """
        self._interrupting = True
        if not self.ended:
            self.deadline = math.inf
            self._interrupted = True
            raise_in_thread(thread, type("_InterruptionError", (_InterruptionError,), {"call": self}))
        self._interrupting = False


class _InterruptionError(BaseException):
    """Interrupts a handler that runs in a thread. It is not caught by an `except Exception` in the handler.

    The error object exists while the handler cleans up. If the object is freed before the call ends, the interruption
    was suppressed by a bare `except`, or by Python, which ignores errors in `__del__` and in callbacks of the garbage
    collector. The call can then be interrupted again.
    """

    call: LimitedCall | None = None

    def __del__(self) -> None:
        if self.call:
            self.call.allow_another_limit()
