"""A time limit for each call of a handler in a thread or a coroutine; the pool kills a process instead.

A coroutine is cancelled, and cancelled again if it goes on nevertheless. In a thread the error is raised between two
steps of Python code. A call that never comes back to Python, such as one into a library that waits without a time
limit, cannot be interrupted. It keeps its slot until it returns, so a record never runs twice at a time.
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
    """Return the error of a call that took longer."""
    return TimeLimitError(f"The handler did not end within its time limit of {seconds:g} s.")


def limit_coroutine(call: JobCall, seconds: float) -> JobCall:
    """Return the same call, failed with `TimeLimitError` if it took longer, however it handled its cancellation."""

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
    """The limit of one call of a coroutine function, in the task that makes it.

    A cancellation object that was freed before the call has ended was swallowed, and another one follows a limit later.
    While the cancellation object lives, the handler cleans up and is left alone.
    """

    def __init__(self, seconds: float) -> None:
        task: Any = asyncio.current_task()
        self._task = task
        self._seconds = seconds
        self._cancelling = task.cancelling()
        self._cancels = 0
        self._is_due = False  # a cancellation of ours comes
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
        """Await it as `await` does, with our own cancellation in place of asyncio's."""
        steps: Any = awaitable.__await__()
        step: Any = partial(next, steps)
        while True:
            try:
                awaited = step()
            except StopIteration as stop:
                return stop.value
            step = None  # a step keeps the thrown error
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
        """Interrupt nothing any more; return whether the limit alone has ended the call."""
        self._timer.cancel()
        for _ in range(self._cancels):
            self._task.uncancel()
        return self._cancels > 0 and self._task.cancelling() <= self._cancelling


class _LimitCancelledError(asyncio.CancelledError):
    """A cancellation for the limit; the end of the object's life tells that no code handles it any more."""


class ThreadLimit:
    """A limit for calls in threads: its own thread looks ten times in each limit and interrupts late calls."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.calls: dict[int, LimitedCall] = {}  # the last call of each thread
        self._closed = Flag()
        self._watcher = threading.Thread(target=self._watch, name="headway-time-limit", daemon=True)
        self._watcher.start()

    def limit(self, call: JobCall) -> JobCall:
        """Return the same call, failed with `TimeLimitError` if it was interrupted, however it handled that."""

        def limited(job: Job) -> Any:
            running = LimitedCall(self._seconds)
            try:
                try:
                    self.calls[threading.get_ident()] = running
                    return call(job)
                finally:
                    running.end()
            except _InterruptionError:
                running.ended = True  # the interruption may have come before `end` had said so
                raise exceeded(self._seconds) from None

        return limited

    def close(self) -> None:
        """Interrupt nothing any more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, max(0.01, self._seconds / 10))):
            now = time.monotonic()
            for thread, running in list(self.calls.items()):
                if running.deadline <= now:
                    running.interrupt(thread)


class LimitedCall:
    """One call with a limit.

    The call's thread and the watcher each first announce what they do and then look at the other's announcement. No
    call is therefore interrupted after its end.
    """

    __slots__ = ("_interrupted", "_interrupting", "_seconds", "deadline", "ended")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._interrupting = self._interrupted = self.ended = False
        self.allow_another_limit()

    def allow_another_limit(self) -> None:
        """Let the call run for the limit once more."""
        self.deadline = time.monotonic() + self._seconds

    def end(self) -> None:
        """End the call, on its thread: later nothing is raised in it, but this method raises if it was interrupted."""
        self.ended = True
        while self._interrupting:
            time.sleep(0.001)
        if self._interrupted:
            raise_in_thread(threading.get_ident(), _NOTHING)
            raise _InterruptionError

    def interrupt(self, thread: int) -> None:
        """Raise in the thread, unless the call has ended; for the watcher."""
        self._interrupting = True
        if not self.ended:
            self.deadline = math.inf
            self._interrupted = True
            raise_in_thread(thread, type("_InterruptionError", (_InterruptionError,), {"call": self}))
        self._interrupting = False


class _InterruptionError(BaseException):
    """The interruption of a handler's thread, which a handler's `except Exception` does not catch.

    The object lives while the handler cleans up. If it dies before the call ends, it was swallowed: by a bare `except`,
    or by Python itself. Python drops errors raised in `__del__` or in a callback of the garbage collector. The call may
    then be interrupted once more.
    """

    call: LimitedCall | None = None

    def __del__(self) -> None:
        if self.call:
            self.call.allow_another_limit()
