"""Deferral of Ctrl-C, and of other signals whose handlers may raise, while librdkafka's binding is at work.

An exception that Python raises within a callback of the binding is lost there, with the work that the callback was
about to do. An exception that Python raises as a call returns loses the call's result. Only the main thread handles
signals. Blocking them would not do, as another thread would take them.
"""

import signal
import threading
from collections.abc import Iterator
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
    """Handle a Ctrl-C in the block at its end; also a SIGTERM or an alarm, if the program handles those."""
    later = _put_off() if _is_main() else {}  # takes some microseconds, which other threads save
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


def _handle_as_before(later: dict[signal.Signals, _Later]) -> None:
    for number, each in reversed(later.items()):  # Ctrl-C last: it would leave the others put off for good
        signal.signal(number, each.handle)


@contextmanager
def allow_signals() -> Iterator[None]:
    """Handle signals at once inside this block, even within `defer_signals`: for others' code that may take long."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if _is_main() else {}
    later = {number: handle for number, handle in handlers.items() if isinstance(handle, _Later)}
    _handle_as_before(later)
    try:
        yield
    finally:
        for number, each in later.items():
            signal.signal(number, each)
