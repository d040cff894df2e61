"""Runs Spark's work on its own thread, so that Ctrl-C ends it at once and quietly.

On the main thread, PySpark handles Ctrl-C itself: it asks Java to cancel its jobs in the middle of another request,
which prints stack traces.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark import SparkContext

T = TypeVar("T")

_ASK_AGAIN_S = 0.1


def interruptible(work: Callable[[], T]) -> T:
    """Run the work and return its result, or raise its error. On Ctrl-C, its Java process is ended first."""
    with beside(work) as result:
        return result.result()


@contextmanager
def beside(work: Callable[[], T]) -> "Iterator[Future[T]]":
    """Run the work in parallel to the block, which ends after it. On Ctrl-C, its Java process is ended first."""
    with ThreadPoolExecutor(1, "headway-spark") as thread:
        future = thread.submit(work)
        try:
            yield future
        except KeyboardInterrupt:
            _end(future)
            raise


def _end(future: "Future[Any]") -> None:
    logging.disable()  # otherwise each request that is cut off would be logged
    _hush_java()
    while not future.done():
        gateway: Any = SparkContext._gateway  # None while Java is still starting
        if gateway is not None:
            gateway.proc.terminate()
        wait([future], _ASK_AGAIN_S)


def _hush_java() -> None:
    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):  # the context may already be gone
            context.setLogLevel("OFF")
