"""Runs a call that may never return, on its own thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T]) -> Future[T]:
    """Run a call that may never return on a daemon thread, so that it holds up neither the caller nor the process."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            returned = call()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(returned)

    threading.Thread(target=run, name="headway-in-background", daemon=True).start()
    return ended
