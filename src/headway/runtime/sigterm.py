"""What a process manager's SIGTERM does to a run in the main thread."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_terminate(stop: Callable[[bool], None]) -> Iterator[None]:
    """Call `stop(drain)` at SIGTERM: drain at the first, not any more at the next.

    Only in the main thread, and only where nobody else has said what SIGTERM does.
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
