"""Keeps handlers and their lifespans in Spark's Python workers, so that all tasks of a worker share them.

A Python worker is a process that Spark's daemon forks, and that runs one task at a time. Spark has no hook that is
called when a worker ends: the process exits through `os._exit`, which calls no `atexit` function, and when the Spark
program ends, the daemon kills its own process group. So this module replaces `os._exit` with a function that first ends
the lifespans. The process also leaves the daemon's group, and checks for itself whether the daemon still runs. If the
process is killed, its lifespans are not ended.
"""

import atexit
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

from pyspark import TaskContext, cloudpickle

from headway.declarations import is_coroutine_function
from headway.errors import LifespanError
from headway.execution.lifespan import SHUT_DOWN_WITHIN, Consequences, Life, Lifespan
from headway.spark.stage.handler_loop import handler_loop
from headway.spark.stage.settings import RowHandler

log = logging.getLogger(__name__)

MOST_KEPT = 8
"""The maximum number of handlers that a process keeps. A further handler replaces the least recently used one."""

_LOOK_FOR_DAEMON_EVERY = 1.0  # seconds between checks that the daemon is still alive
_OF_ROWS = Consequences(
    at_start="No row was handled.",
    at_end="The results of all rows that are done have reached Spark.",
    of_an_early_end="Its task fails, and the next Python worker starts it again.",
)


class Shared:
    """The lifespan that all calls of a handler in this process share. Raises `LifespanError` if it fails to start."""

    def __init__(self, lifespan: Lifespan, handler: RowHandler) -> None:
        self.failure: LifespanError | None = None
        """The error of the lifespan if it ended on its own, before it was closed."""
        self._life = Life(lifespan, None, _OF_ROWS)
        loop = handler_loop() if is_coroutine_function(handler) else None
        try:
            self._life.start(handler, loop, lambda: False, self._fail)
        except LifespanError:
            self._life.close(0.0)
            raise

    def state(self) -> Any:
        """Return the value that the lifespan yielded."""
        return self._life.state()

    def check(self) -> None:
        """Raise the error of the lifespan if it ended on its own, before it was closed."""
        if self.failure:
            raise self.failure

    def close(self) -> None:
        """End the lifespan, waiting for a few seconds at most, and log its error if it has one."""
        self._life.close(0.0)
        if self._life.failure:
            log.error("%s", self._life.failure)

    def _fail(self, failure: LifespanError) -> None:
        self.failure = failure


class Kept(NamedTuple):
    """A handler that this process keeps, together with its lifespan if it has one."""

    handler: RowHandler
    shared: Shared | None


_kept: OrderedDict[bytes, Kept] = OrderedDict()
_ending = threading.Lock()


def pickled(handler: RowHandler, lifespan: Lifespan | None) -> bytes:
    """Pickle a handler and its lifespan together for `kept`, so that after unpickling they share the same globals."""
    return cloudpickle.dumps((handler, lifespan))  # type: ignore[no-any-return, no-untyped-call]


def kept(form: bytes) -> Kept:
    """Return the handler and the lifespan that `pickled` encoded. All tasks of this process get the same objects.

    The first call starts the lifespan. Raises `LifespanError` if it fails to start.
    """
    found = _kept.get(form)
    if found is None:
        while len(_kept) >= MOST_KEPT:
            _close(_kept.popitem(last=False)[1])
        handler, lifespan = cloudpickle.loads(form)
        if lifespan is not None and TaskContext.get() is not None:
            _end_with_process()
        found = _kept[form] = Kept(handler, None if lifespan is None else Shared(lifespan, handler))
    _kept.move_to_end(form)
    return found


def end_all() -> None:
    """End the lifespans of all handlers. If another thread already does so, this call waits for it."""
    with _ending:
        # End all lifespans at the same time, so that together they take no longer than the slowest of them.
        closing = [
            threading.Thread(target=_close, args=(_kept.popitem()[1],), name="headway-lifespan-end", daemon=True)
            for _ in range(len(_kept))
        ]
        for thread in closing:
            thread.start()
        until = time.monotonic() + 2 * SHUT_DOWN_WITHIN
        for thread in closing:
            thread.join(max(0.0, until - time.monotonic()))


def _close(one: Kept) -> None:
    if one.shared:
        one.shared.close()


@cache
def _end_with_process() -> None:
    """Make this Python worker call `end_all` when it exits, and make it exit when its daemon has ended."""
    atexit.register(end_all)  # for a process that no daemon has forked, and that exits normally
    os._exit = partial(_end_and_exit, os._exit, os.getpid())
    daemon = os.getppid()
    if os.getpgid(0) == daemon:
        os.setpgid(0, 0)  # leaves the daemon's group, which the daemon kills without a warning
    threading.Thread(target=_leave_with, args=(daemon,), name="headway-spark-daemon", daemon=True).start()


def _end_and_exit(exit_at_once: Callable[[int], NoReturn], owner: int, code: int) -> NoReturn:
    if os.getpid() == owner:  # not in a process that a handler has forked
        end_all()
    exit_at_once(code)


def _leave_with(daemon: int) -> None:
    while os.getppid() == daemon:
        time.sleep(_LOOK_FOR_DAEMON_EVERY)
    os._exit(1)
