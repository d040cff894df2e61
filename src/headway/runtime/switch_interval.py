"""Raises Python's switch interval with the number of threads that run handlers.

A thread that waits for the interpreter lock wakes up every switch interval (5 ms) to ask for it. With a thousand
waiting threads that is 200,000 times a second, and little else gets done. So the interval grows by 50 µs per handler
thread: for up to a hundred it stays Python's own, and for a thousand it is 50 ms.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PER_THREAD = 50e-6  # seconds


class _Switching:
    """The switch interval of the process. When the last thread has ended, the user's own interval is restored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._users = 0.0

    @contextmanager
    def one_thread_more(self) -> Iterator[None]:
        """Count this thread as one that runs handlers, inside the block."""
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
