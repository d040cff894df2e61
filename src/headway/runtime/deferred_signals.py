"""Defers Ctrl-C, and other signals whose handlers may raise, while librdkafka's Python binding is at work.

An exception that Python raises inside a callback of the binding is lost, along with the work that the callback was
about to do. An exception that Python raises just as a call returns loses the call's result. Only the main thread
handles signals. Blocking them would not help, because another thread would receive them.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else [])]


class _DeferredSignal:
    """A signal handler that defers the original one."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.came: tuple[Any, ...] | None = None

    def __call__(self, *signals: Any) -> None:
        self.came = signals

    def deliver(self) -> None:
        """Handle the signal now, if one came."""
        came, self.came = self.came, None
        if came:
            self.handle(*came)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def defer_signals() -> Iterator[None]:
    """Handle a Ctrl-C that arrives in the block at its end. The same for SIGTERM and SIGALRM if they have handlers."""
    later = _put_off() if _is_main() else {}  # this takes some microseconds, which other threads save
    if not later:
        yield
        return
    try:
        yield
    finally:
        _handle_as_before(later)
        for each in later.values():
            each.deliver()


def _put_off() -> dict[signal.Signals, _DeferredSignal]:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    later = {number: _DeferredSignal(handle) for number, handle in handlers.items() if callable(handle)}
    for number, each in later.items():
        signal.signal(number, each)
    return later


def _handle_as_before(later: dict[signal.Signals, _DeferredSignal]) -> None:
    # Restore Ctrl-C last: if it arrived in between, the others would stay deferred forever.
    for number, each in reversed(later.items()):
        signal.signal(number, each.handle)


def heed_signals() -> None:
    """Handle the signals that an enclosing `defer_signals` has deferred so far. For loops that wait inside it."""
    if _is_main():
        for handle in map(signal.getsignal, _SIGNALS):
            if isinstance(handle, _DeferredSignal):
                handle.deliver()


@contextmanager
def allow_signals() -> Iterator[None]:
    """Handle signals at once in this block, even within `defer_signals`, for user code that may take long."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if _is_main() else {}
    later = {number: handle for number, handle in handlers.items() if isinstance(handle, _DeferredSignal)}
    try:
        _handle_as_before(later)
        for each in later.values():
            each.deliver()
        yield
    finally:
        for number, each in later.items():
            signal.signal(number, each)
