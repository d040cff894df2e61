"""Stops a run in the main thread when the process gets SIGTERM, for example from a process manager."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_terminate(stop: Callable[[bool], None]) -> Iterator[None]:
    """At the first SIGTERM, call `stop(True)` to finish the running jobs. At each further SIGTERM, call `stop(False)`.

    Has no effect outside the main thread, or if SIGTERM already has a handler. A process that is forked during the
    block has no run to stop, so a SIGTERM simply ends that process.
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
        # This call is inside the `try`, because a Ctrl-C can arrive just as the call returns.
        signal.signal(signal.SIGTERM, terminate)
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
