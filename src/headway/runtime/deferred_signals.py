"""Ctrl-C, and what else may raise out of a signal's handler, while librdkafka's binding is at work.

What Python raises within a callback of the binding is lost there, with what that was about to do; what it raises as a
call returns, with what that has returned. Only the main thread handles signals: to block them would not do, as another
thread would take them.
"""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else [])]


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
def defer_signals() -> Iterator[None]:
    """A Ctrl-C in the block is handled at its end; so is a SIGTERM or an alarm, if the program handles those."""
    later = _put_off() if _is_main() else {}  # some microseconds, which other threads save
    if not later:
        yield
        return
    try:
        yield
    finally:
        _handle_as_before(later)
        for each in later.values():
            if each.came:
                each.handle(*each.came)


def _put_off() -> dict[signal.Signals, _Later]:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    later = {number: _Later(handle) for number, handle in handlers.items() if callable(handle)}
    for number, each in later.items():
        signal.signal(number, each)
    return later


def _handle_as_before(later: Mapping[signal.Signals, _Later]) -> None:
    for number, each in later.items():
        signal.signal(number, each.handle)


@contextmanager
def allow_signals() -> Iterator[None]:
    """Where it waits, not in this block: for what others wrote, and may take long."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if _is_main() else {}
    later = {number: handle for number, handle in handlers.items() if isinstance(handle, _Later)}
    _handle_as_before(later)
    try:
        yield
    finally:
        for number, each in later.items():
            signal.signal(number, each)
