"""Defers signals while librdkafka's Python binding is running: Ctrl-C, and SIGTERM and SIGALRM if they have handlers.

The handlers of these signals can raise exceptions. If an exception is raised inside a callback of the binding, the
binding drops the exception, and the rest of the callback does not run. If an exception is raised just as a call
returns, the result of the call is lost.

Python handles signals in the main thread only. Blocking the signals in that thread would not help, because the
operating system would deliver them to another thread.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else [])]


class _DeferredSignal:
    """A temporary signal handler, which remembers a signal so that the original handler can be called later."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.came: tuple[Any, ...] | None = None

    def __call__(self, *signals: Any) -> None:
        self.came = signals

    def deliver(self) -> None:
        """Call the original handler if a signal has arrived."""
        came, self.came = self.came, None
        if came:
            self.handle(*came)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer a Ctrl-C that arrives during the block to the end of the block.

    SIGTERM and SIGALRM are deferred in the same way if they have handlers.
    """
    # Only the main thread gets signals, so other threads can skip replacing the handlers, which takes a few
    # microseconds.
    later = _put_off() if _is_main() else {}
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
    # The handler of Ctrl-C is restored last. If it were restored first, a Ctrl-C could interrupt the restoring, and the
    # other signals would stay deferred forever.
    for number, each in reversed(later.items()):
        signal.signal(number, each.handle)


def heed_signals() -> None:
    """Handle now the signals that an enclosing `defer_signals` has deferred so far.

    A loop that waits inside `defer_signals` calls this, so that it can be interrupted.
    """
    if _is_main():
        for handle in map(signal.getsignal, _SIGNALS):
            if isinstance(handle, _DeferredSignal):
                handle.deliver()


@contextmanager
def allow_signals() -> Iterator[None]:
    """Handle signals at once during this block, even within `defer_signals`.

    Used for user code that might take a long time.
    """
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
