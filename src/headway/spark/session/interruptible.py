"""Runs a function that uses Spark on a separate thread, so that Ctrl-C ends it at once and without stack traces.

On the main thread, PySpark handles Ctrl-C itself: it sends Java a request to cancel its jobs in the middle of another
request, which prints stack traces.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark import SparkContext

T = TypeVar("T")

_ASK_AGAIN_S = 0.1  # seconds between two attempts to end Java, which cannot be ended while it is starting


def interruptible(work: Callable[[], T]) -> T:
    """Run the function on another thread, and return its result or raise its error.

    On Ctrl-C, the Java process is ended before `KeyboardInterrupt` is raised.
    """
    with beside(work) as result:
        return result.result()


@contextmanager
def beside(work: Callable[[], T]) -> "Iterator[Future[T]]":
    """Run the function on another thread during the `with` block. Leaving the block waits until the function has ended.

    Yields the future of its result. On Ctrl-C, the Java process is ended before `KeyboardInterrupt` is raised.
    """
    with ThreadPoolExecutor(1, "headway-spark") as thread:
        future = thread.submit(work)
        try:
            yield future
        except KeyboardInterrupt:
            _end(future)
            raise


def _end(future: "Future[Any]") -> None:
    logging.disable()  # otherwise py4j would log each request that is interrupted
    _hush_java()
    while not future.done():
        gateway: Any = SparkContext._gateway  # None while Java is still starting
        if gateway is not None:
            gateway.proc.terminate()
        wait([future], _ASK_AGAIN_S)


def _hush_java() -> None:
    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):  # the context may already be stopped
            context.setLogLevel("OFF")
