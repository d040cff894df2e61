"""Handles a process manager's SIGTERM during a run in the main thread."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_terminate(stop: Callable[[bool], None]) -> Iterator[None]:
    """Call `stop(True)`, which drains, at the first SIGTERM, and `stop(False)` at the next.

    This applies only in the main thread, and only if SIGTERM has no handler yet. A process that is forked in the
    meantime has no run to stop, so SIGTERM ends it.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    drain = iter([True])
    process = os.getpid()

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() == process:
            stop(next(drain, False))
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    try:
        signal.signal(signal.SIGTERM, terminate)  # inside the `try`, because a Ctrl-C can strike just as it returns
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
