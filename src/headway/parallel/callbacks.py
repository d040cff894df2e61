"""Calls the user's callbacks about partitions and commits one after the other, in a thread of their own.

The control thread goes on meanwhile, so other partitions are fetched, handled and handed over however long a callback
takes.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from headway.declarations import called, check_function, runs_nothing_when_called, takes
from headway.errors import ConfigError
from headway.kafka.consumer.commits import Offsets, OnCommit
from headway.records.record_types import TopicPartition
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

OnRebalance = Callable[[list[TopicPartition]], Any]


class _DueCall(NamedTuple):
    """A call that is due; `ended` resolves when it returns, or has the error that it raised."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    ended: "Future[None]"


class Callbacks:
    """The callbacks of one consumer, and the partitions that they were called for.

    Invariants: calls are made one after the other, in the order of the events. Each partition that `on_assign` was
    called with is in one later call of `on_revoke` or `on_lost`. Only the control thread calls the methods, except
    `runs_here`.
    """

    def __init__(self, wake: Wakeup) -> None:
        self._wake = wake
        self._on_assign: OnRebalance | None = None
        self._on_revoke: OnRebalance | None = None
        self._on_lost: OnRebalance | None = None
        self._on_commit: OnCommit | None = None
        self._known: set[TopicPartition] = set()
        self._awaited: dict[TopicPartition, Future[None]] = {}  # with the call of `on_assign` that has not returned
        self._lock = threading.Lock()
        self._due: deque[_DueCall] = deque()
        self._is_working = False
        self._thread = 0
        self.failure: BaseException | None = None
        """The first error of a rebalance callback, which ends the run."""

    def use(
        self,
        on_assign: OnRebalance | None,
        on_revoke: OnRebalance | None,
        on_lost: OnRebalance | None,
        on_commit: OnCommit | None,
    ) -> None:
        """Call these functions from now on. Without `on_lost`, `on_revoke` is called for lost partitions, too."""
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost or on_revoke
        self._on_commit = on_commit

    # Partitions

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Call `on_assign` with new partitions."""
        self._known.update(partitions)
        if call := self._call(self._on_assign, partitions):
            self._awaited |= dict.fromkeys(partitions, call)

    def awaited(self) -> Collection[TopicPartition]:
        """Return the partitions whose `on_assign` has not returned, so that none of their records starts."""
        if self._awaited:
            self._awaited = {each: call for each, call in self._awaited.items() if not _has_returned(call)}
        return self._awaited.keys()

    @property
    def has_on_revoke(self) -> bool:
        """True if there is an `on_revoke` to wait for."""
        return self._on_revoke is not None

    def revoked(self, partitions: Iterable[TopicPartition]) -> "Future[None] | None":
        """Call `on_revoke` with partitions whose records are done or given up.

        Returns a future to wait for, or None if nothing was called. Commit what is done only when the call has
        returned, and not at all if it has raised.
        """
        return self._call(self._on_revoke, self._forget(partitions))

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Call `on_lost` with partitions that another member may have already."""
        self._call(self._on_lost, self._forget(partitions))

    def _forget(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        known = [partition for partition in partitions if partition in self._known]
        for partition in known:
            self._known.discard(partition)
            self._awaited.pop(partition, None)
        return known

    def _call(self, function: OnRebalance | None, partitions: Collection[TopicPartition]) -> "Future[None] | None":
        if function is None or not partitions:
            return None
        return self._add(function, sorted(partitions))

    # Commits

    def committed(self, error: Exception | None, offsets: Offsets) -> None:
        """Call `on_commit`. Commits that succeed while callbacks run are put together into one call."""
        if self._on_commit is None or not offsets:
            return
        with self._lock:
            if (
                error is None
                and self._due
                and self._due[-1].function == self._commit
                and not self._due[-1].arguments[0]
            ):
                offsets = self._due.pop().arguments[1] | offsets
        self._add(self._commit, error, dict(offsets))

    def _commit(self, error: Exception | None, offsets: Offsets) -> None:
        try:
            if self._on_commit:
                self._on_commit(error, offsets)
        except BaseException:  # what was committed stays committed
            log.exception("The on_commit callback raised.")

    # Calls

    def _add(self, function: Callable[..., Any], *arguments: Any) -> "Future[None]":
        call = _DueCall(function, arguments, Future())
        with self._lock:
            self._due.append(call)
            if self._is_working:
                return call.ended
            self._is_working = True
        in_background(self._work)
        return call.ended

    def _work(self) -> None:
        self._thread = threading.get_ident()
        while call := self._next():
            try:
                call.function(*call.arguments)
            except BaseException as error:
                if self.failure:
                    log.error("A rebalance callback raised while the run ends:", exc_info=error)
                self.failure = self.failure or error
                call.ended.set_exception(error)
            else:
                call.ended.set_result(None)
            self._wake.set()

    def _next(self) -> _DueCall | None:
        with self._lock:
            if self._due:
                return self._due.popleft()
            self._is_working, self._thread = False, 0
            return None

    def runs_here(self) -> bool:
        """Return whether this thread is running a callback. Any thread may ask."""
        return self._thread == threading.get_ident()

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until all calls have returned."""
        with self._lock:
            if not self._is_working:
                return
        over = self._add(lambda: None)
        try:
            over.result(timeout)
        except TimeoutError:
            log.warning("A callback has not returned within %g s. The consumer ends without waiting for it.", timeout)


def _has_returned(call: "Future[None]") -> bool:
    return call.done() and call.exception() is None


def check_callback(name: str, callback: Callable[..., Any] | None, parameters: Sequence[str]) -> None:
    """Raise `ConfigError` for a callback that cannot be called with these arguments, or that a call would not run."""
    if callback is None:
        return
    if callable(callback) and runs_nothing_when_called(callback):
        raise ConfigError(
            f"{name} is an async def, or yields. It is called in a thread, so nothing of it would run. Give a plain "
            "function; for an event loop, one that calls the loop's call_soon_threadsafe."
        )
    check_function(name, callback, parameters)


def check_async_callback(name: str, callback: Callable[..., Any], parameters: Sequence[str]) -> None:
    """Raise `ConfigError` for an `async def` that cannot be called with these arguments."""
    if not takes(callback, len(parameters)):
        raise ConfigError(f"{name} is {called(callback)}, which cannot be called with ({', '.join(parameters)}).")


def check_callbacks(
    on_assign: OnRebalance | None,
    on_revoke: OnRebalance | None,
    on_lost: OnRebalance | None,
    on_commit: OnCommit | None,
) -> None:
    """Raise `ConfigError` for a callback of a subscription that cannot be called."""
    for name, callback in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
        check_callback(name, callback, ("partitions",))
    check_callback("on_commit", on_commit, ("error", "offsets"))
