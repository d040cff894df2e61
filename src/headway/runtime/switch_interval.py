"""Raises Python's thread switch interval with the number of threads that run handlers.

A thread that waits for the interpreter lock wakes up once per switch interval (5 ms by default) to request the lock.
With a thousand waiting threads, there would be 200,000 wake-ups a second, which would leave little time for anything
else. So the interval is set to 50 µs for each handler thread, but never below its previous value: with up to a hundred
threads it stays at Python's default, and with a thousand threads it is 50 ms.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PER_THREAD = 50e-6  # the length of the switch interval per handler thread, in seconds


class _Switching:
    """Sets the switch interval of the process. Restores the previous value when the last handler thread has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the number of threads
        self._threads = 0
        self._users = 0.0

    @contextmanager
    def one_thread_more(self) -> Iterator[None]:
        """During the block, count the current thread as a thread that runs handlers."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            if self._threads == 0:
                self._users = sys.getswitchinterval()
            self._threads += more
            sys.setswitchinterval(max(self._users, self._threads * _PER_THREAD))


one_thread_more = _Switching().one_thread_more
