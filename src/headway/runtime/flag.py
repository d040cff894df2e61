"""Events that an interrupt cannot break.

Python may raise `KeyboardInterrupt` just as a call returns. If that is the call that acquires the lock inside a
`threading.Event`, `Semaphore` or `Condition`, no one releases the lock, and everyone who uses the object later waits
forever. So the main thread only shares two kinds of locks with others: those that it acquires directly with `with`,
which Python does not interrupt, and those in here.
"""

import contextlib
import math
import threading
import time

_LOOKS_EVERY = 1.0  # seconds; an interrupt may end `set` before it has woken anyone, so look again


class WholeCondition(threading.Condition):
    """A condition whose `with` block acquires and releases the lock directly, with no Python code in between."""

    # `with` looks up both before it acquires the lock, and then calls the lock's own methods.
    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class Flag:
    """A flag that is set once. Any thread can wait for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._unset = threading.Lock()
        self._unset.acquire()

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """End all waits, including later ones."""
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # it was set already
            self._unset.release()

    def wait(self, timeout: float = math.inf) -> bool:
        """Wait until the flag is set, for at most `timeout` seconds. Returns whether it is set."""
        until = time.monotonic() + timeout
        while not self._is_set and (left := until - time.monotonic()) > 0:
            if self._unset.acquire(timeout=min(left, _LOOKS_EVERY)):
                self._unset.release()  # let the next waiting thread through
        return self._is_set


class Nudge:
    """Wakes one thread. Any thread can call `set`."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """End the current wait, or the next one."""
        with contextlib.suppress(RuntimeError):  # it was set already
            self._asleep.release()

    def wait(self, timeout: float) -> None:
        """Wait until `set` has been called since the last wait, for at most `timeout` seconds."""
        self._asleep.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
