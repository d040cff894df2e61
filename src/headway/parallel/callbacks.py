"""The user's callbacks about partitions and commits, each in its turn, in a thread that runs nothing else.

The control thread goes on meanwhile: other partitions are fetched, handled and handed over, whatever a callback does.
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


class _Call(NamedTuple):
    """A call that is due; `ended` has its error, if it raised one."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    ended: "Future[None]"


class Callbacks:
    """The callbacks of one consumer, and the partitions that they know of.

    Invariants: calls come one after the other, in the order of what they tell. Each partition that `on_assign` was told
    of is in one later call of `on_revoke` or `on_lost`. The control thread calls all methods but `runs_here`.
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
        self._due: deque[_Call] = deque()
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
        """Call these functions from now on; `on_lost` is `on_revoke` if it is None."""
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost or on_revoke
        self._on_commit = on_commit

    # Partitions

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Tell of new partitions."""
        self._known.update(partitions)
        if told := self._tell(self._on_assign, partitions):
            self._awaited |= dict.fromkeys(partitions, told)

    def awaited(self) -> Collection[TopicPartition]:
        """Return the partitions of which nothing may start yet, as `on_assign` has not returned."""
        if self._awaited:
            self._awaited = {each: told for each, told in self._awaited.items() if not _has_returned(told)}
        return self._awaited.keys()

    @property
    def hears_of_revoked(self) -> bool:
        """True if there is an `on_revoke`."""
        return self._on_revoke is not None

    def revoked(self, partitions: Iterable[TopicPartition]) -> "Future[None] | None":
        """Tell of partitions whose records are done or given up; return the call, None if there is nothing to wait for.

        What is done may be committed once the call has returned, and not if it has raised.
        """
        return self._tell(self._on_revoke, self._forget(partitions))

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell of partitions that another member may have already."""
        self._tell(self._on_lost, self._forget(partitions))

    def _forget(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        known = [partition for partition in partitions if partition in self._known]
        for partition in known:
            self._known.discard(partition)
            self._awaited.pop(partition, None)
        return known

    def _tell(self, function: OnRebalance | None, partitions: Collection[TopicPartition]) -> "Future[None] | None":
        if function is None or not partitions:
            return None
        return self._add(function, sorted(partitions))

    # Commits

    def committed(self, error: Exception | None, offsets: Offsets) -> None:
        """Tell of a commit; several that succeed while callbacks run are told as one."""
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
        call = _Call(function, arguments, Future())
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

    def _next(self) -> _Call | None:
        with self._lock:
            if self._due:
                return self._due.popleft()
            self._is_working, self._thread = False, 0
            return None

    def runs_here(self) -> bool:
        """Return whether a callback runs in the thread that asks; for any thread."""
        return self._thread == threading.get_ident()

    def wait(self, timeout: float) -> None:
        """Wait until all calls have returned, or `timeout` seconds."""
        with self._lock:
            if not self._is_working:
                return
        over = self._add(lambda: None)
        try:
            over.result(timeout)
        except TimeoutError:
            log.warning("A callback has not returned within %g s, and is left alone.", timeout)


def _has_returned(told: "Future[None]") -> bool:
    return told.done() and told.exception() is None


def check_callback(name: str, callback: Callable[..., Any] | None, parameters: Sequence[str]) -> None:
    """Raise `ConfigError` for a callback that cannot be called with these arguments, or that a call would not run."""
    if callback is None:
        return
    if callable(callback) and runs_nothing_when_called(callback):
        raise ConfigError(
            f"{name} is an async def, or yields: it is called in a thread, and nothing of it would run. Give a plain "
            "function; for an event loop, one that calls its call_soon_threadsafe."
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
