"""The handling of a process manager's SIGTERM for a run in the main thread."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_terminate(stop: Callable[[bool], None]) -> Iterator[None]:
    """Call `stop(True)`, which drains, at the first SIGTERM, and `stop(False)` at the next.

    This applies only in the main thread, and only if SIGTERM has no handler yet.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    drain = iter([True])

    def terminate(number: int, frame: Any) -> None:
        stop(next(drain, False))

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
