"""Stops a run in the main thread when the process gets SIGTERM, for example from a process manager."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_terminate(stop: Callable[[bool], None]) -> Iterator[None]:
    """Call `stop(True)` at the first SIGTERM, to finish the running jobs, and `stop(False)` at each further one.

    This applies only in the main thread, and only if SIGTERM has no handler yet. A process that is forked during the
    block has no run to stop, so SIGTERM ends it.
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
        # Inside the `try`, because a Ctrl-C can arrive just as this call returns.
        signal.signal(signal.SIGTERM, terminate)
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
