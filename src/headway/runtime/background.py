"""Runs a call that might never return in a background thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T]) -> Future[T]:
    """Run a call on a daemon thread, so that neither the caller nor the exit of the process has to wait for it.

    Returns a future with the call's result.
    """
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
