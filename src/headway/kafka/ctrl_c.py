"""Ctrl-C while librdkafka's binding is at work.

What Python raises within a callback of the binding is lost there, with what that was about to do; what it raises as a
call returns, with what that has returned. Only the main thread handles signals: to block them would not do, as another
thread would take them.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Later:
    """A handler that puts off another one."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.came: tuple[Any, ...] | None = None

    def __call__(self, *signals: Any) -> None:
        self.came = signals


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """A Ctrl-C in the block is handled at its end."""
    handle = signal.getsignal(signal.SIGINT) if _is_main() else None  # two microseconds, which other threads save
    if not callable(handle):
        yield
        return
    later = _Later(handle)
    signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handle)
        if later.came:
            handle(*later.came)


@contextmanager
def ctrl_c_at_once() -> Iterator[None]:
    """Where it waits, not in this block: for what others wrote, and may take long."""
    later = signal.getsignal(signal.SIGINT)
    if not _is_main() or not isinstance(later, _Later):
        yield
        return
    signal.signal(signal.SIGINT, later.handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, later)
