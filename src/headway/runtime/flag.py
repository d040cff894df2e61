"""Flags and conditions that an interrupt cannot leave locked.

Python can raise `KeyboardInterrupt` just as a call returns. If that call has acquired the lock inside a
`threading.Event`, `Semaphore` or `Condition`, the lock is never released, and every later user of the object waits
forever. So the main thread shares only two kinds of locks with other threads: locks that it acquires directly in a
`with` statement, which Python does not interrupt, and the classes in this module.
"""

import contextlib
import math
import threading
import time

# How often a waiting thread checks the flag, in seconds. The thread must check because an interrupt can end `set`
# before `set` has woken any thread.
_LOOKS_EVERY = 1.0


class WholeCondition(threading.Condition):
    """A condition whose `with` statement acquires and releases the lock without running any Python code."""

    # A `with` statement looks up both methods before it acquires the lock, and then calls these methods of the lock
    # itself.
    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class Flag:
    """A flag that is set once and never cleared. Any thread can wait for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._unset = threading.Lock()
        self._unset.acquire()

    def is_set(self) -> bool:
        """Return whether `set` has been called."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, so that every current and later `wait` returns at once."""
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # raised if the flag was already set
            self._unset.release()

    def wait(self, timeout: float = math.inf) -> bool:
        """Wait until the flag is set, or for at most `timeout` seconds. Returns whether it is set."""
        until = time.monotonic() + timeout
        while not self._is_set and (left := until - time.monotonic()) > 0:
            if self._unset.acquire(timeout=min(left, _LOOKS_EVERY)):
                self._unset.release()  # this lets the next waiting thread acquire the lock
        return self._is_set


class Nudge:
    """Wakes the one thread that waits for it. Any thread can call `set`."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """Wake the waiting thread. If no thread is waiting, the next `wait` returns at once."""
        with contextlib.suppress(RuntimeError):  # raised if `set` had already been called
            self._asleep.release()

    def wait(self, timeout: float) -> None:
        """Wait until `set` is called, or for at most `timeout` seconds.

        If `set` has been called since the last wait, this returns at once.
        """
        self._asleep.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
