"""Python's switch interval, which grows with the number of threads that serve handlers.

A thread that waits for the interpreter wakes up at each switch interval, of 5 ms, to ask for it. If a thousand threads
wait, that is 200,000 times a second, and little else is done. So the interval grows with the handlers' threads: 50 µs
for each, which is Python's own for up to a hundred, and 50 ms for a thousand.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PER_THREAD = 50e-6  # seconds


class _Switching:
    """The switch interval of the whole process; when the last thread has ended, it is the user's own again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._users = 0.0

    @contextmanager
    def one_thread_more(self) -> Iterator[None]:
        """Count this thread as one that serves handlers, inside the block."""
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
