"""Events that an interrupt cannot break.

Python raises `KeyboardInterrupt` as a call returns. Where that is the call that takes the lock within a
`threading.Event`, a `Semaphore` or a `Condition`, nobody gives the lock back, and all who use the object later wait
for ever. The main thread therefore shares with others only locks that it takes by `with` itself, which Python does not
interrupt, and these.
"""

import contextlib
import math
import threading
import time

_LOOKS_EVERY = 1.0  # seconds: an interrupt may end `set` before it has woken anybody


class WholeCondition(threading.Condition):
    """A condition whose `with` blocks take and give back the lock at once, without a step in between."""

    # `with` asks for both before it takes the lock, and then calls the lock's own methods.
    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class Flag:
    """A flag that is set once, and that any thread may wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._unset = threading.Lock()
        self._unset.acquire()

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """End all waits, also the later ones."""
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # it was set before
            self._unset.release()

    def wait(self, timeout: float = math.inf) -> bool:
        """Wait until the flag is set, at most `timeout` seconds; return whether it is."""
        until = time.monotonic() + timeout
        while not self._is_set and (left := until - time.monotonic()) > 0:
            if self._unset.acquire(timeout=min(left, _LOOKS_EVERY)):
                self._unset.release()  # for the next one who waits
        return self._is_set


class Nudge:
    """A wake-up for one thread, which any thread may give."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """End the wait, or the next one."""
        with contextlib.suppress(RuntimeError):  # it was set before
            self._asleep.release()

    def wait(self, timeout: float) -> None:
        """Wait until `set` was called since the last wait, at most `timeout` seconds."""
        self._asleep.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
