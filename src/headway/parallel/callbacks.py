"""Calls the user's callbacks for rebalances and commits, one after the other, in a separate thread.

The control thread itself calls no callback, so that it can continue to fetch, commit and rebalance even if a callback
takes a long time.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from headway.declarations import check_function
from headway.kafka.consumer.commits import OffsetsOfCommit, OnCommit
from headway.records.record_types import TopicPartition
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

OnRebalance = Callable[[list[TopicPartition]], Any]


class _QueuedCall(NamedTuple):
    """A call that waits until earlier calls have ended.

    The future `ended` is done once the call has returned or raised.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    ended: "Future[None]"


class Callbacks:
    """Calls the callbacks of one consumer. Until `subscribe` registers the user's functions, nothing is called.

    Invariants: calls are made one after the other, in the order of the events. Each partition that was passed to
    `on_assign` is later passed exactly once to `on_revoke` or `on_lost`. Only the control thread calls these methods,
    except `runs_here`, which any thread can call.
    """

    def __init__(self, wake: Wakeup) -> None:
        self._wake = wake
        self._on_assign: OnRebalance | None = None
        self._on_revoke: OnRebalance | None = None
        self._on_lost: OnRebalance | None = None
        self._on_commit: OnCommit | None = None
        self._known: set[TopicPartition] = set()  # partitions that have been assigned and not yet been revoked or lost
        # New partitions, each with the future of its `on_assign` call.
        self._awaited: dict[TopicPartition, Future[None]] = {}
        self._lock = threading.Lock()  # protects the calls that wait
        self._queue: deque[_QueuedCall] = deque()
        self._is_working = False
        self._thread = 0  # the identifier of the thread that makes the calls, or 0 while no thread does
        self.failure: BaseException | None = None
        """The first error that a rebalance callback raised. It ends the run."""

    def subscribe(
        self,
        on_assign: OnRebalance | None,
        on_revoke: OnRebalance | None,
        on_lost: OnRebalance | None,
        on_commit: OnCommit | None,
    ) -> None:
        """Register the user's functions. Without an `on_lost`, lost partitions are passed to `on_revoke`.

        Raises `ConfigError` if a function cannot be called with the arguments that it would get.
        """
        check_callbacks(on_assign, on_revoke, on_lost, on_commit)
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost or on_revoke
        self._on_commit = on_commit

    # Partitions

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Call `on_assign` with new partitions."""
        self._known.update(partitions)
        if call := self._call(self._on_assign, partitions):
            self._awaited |= dict.fromkeys(partitions, call)

    def awaited(self) -> Collection[TopicPartition]:
        """Return the partitions whose `on_assign` call is still queued or running.

        No handler may start for the records of these partitions yet.
        """
        if self._awaited:
            self._awaited = {each: call for each, call in self._awaited.items() if not _has_returned(call)}
        return self._awaited.keys()

    @property
    def has_on_revoke(self) -> bool:
        """True if the user has registered an `on_revoke`."""
        return self._on_revoke is not None

    def revoked(self, partitions: Iterable[TopicPartition]) -> "Future[None] | None":
        """Call `on_revoke` with these partitions. Their handlers must have ended or have been abandoned.

        Returns the future of the call, or None if there is no call to make. The completed records must be committed
        only after the call has returned. If the call raises, they must not be committed at all.
        """
        return self._call(self._on_revoke, self._forget(partitions))

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Call `on_lost` with partitions that another member might already own."""
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

    def committed(self, error: Exception | None, offsets: OffsetsOfCommit) -> None:
        """Call `on_commit`. If several commits succeed while another callback runs, they are reported in one call."""
        if self._on_commit is None or not offsets:
            return
        with self._lock:
            last = self._queue[-1] if self._queue else None
            if error is None and last and last.function == self._commit and last.arguments[0] is None:
                offsets = self._queue.pop().arguments[1] | offsets
        self._add(self._commit, error, dict(offsets))

    def _commit(self, error: Exception | None, offsets: OffsetsOfCommit) -> None:
        try:
            if self._on_commit:
                self._on_commit(error, offsets)
        except BaseException:  # the commit was made or has failed anyway, so an error of the callback is only logged
            log.exception("The on_commit callback raised an error.")

    # Calls

    def _add(self, function: Callable[..., Any], *arguments: Any) -> "Future[None]":
        call = _QueuedCall(function, arguments, Future())
        with self._lock:
            self._queue.append(call)
            if self._is_working:
                return call.ended
            self._is_working = True
        in_background(self._attempt)
        return call.ended

    def _attempt(self) -> None:
        self._thread = threading.get_ident()
        while call := self._next():
            try:
                call.function(*call.arguments)
            except BaseException as error:
                if self.failure:
                    log.error("A rebalance callback raised an error while the run was ending:", exc_info=error)
                self.failure = self.failure or error
                call.ended.set_exception(error)
            else:
                call.ended.set_result(None)
            self._wake.set()

    def _next(self) -> _QueuedCall | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._is_working, self._thread = False, 0
            return None

    def runs_here(self) -> bool:
        """Return whether the calling thread is running a callback. Any thread can call this method."""
        return self._thread == threading.get_ident()

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for all calls to return."""
        with self._lock:
            if not self._is_working:
                return
        last = self._add(lambda: None)
        try:
            last.result(timeout)
        except TimeoutError:
            log.warning("A callback has not returned within %g s. The consumer ends without waiting for it.", timeout)


def _has_returned(call: "Future[None]") -> bool:
    return call.done() and call.exception() is None


def check_callback(name: str, callback: Callable[..., Any] | None, parameters: Sequence[str]) -> None:
    """Raise `ConfigError` unless the callback is None or a plain function that takes these parameters."""
    if callback is not None:
        advice = "It is called in a thread. To run code in an event loop from there, use loop.call_soon_threadsafe."
        check_function(name, callback, parameters, advice)


def check_callbacks(
    on_assign: OnRebalance | None,
    on_revoke: OnRebalance | None,
    on_lost: OnRebalance | None,
    on_commit: OnCommit | None,
) -> None:
    """Raise `ConfigError` if a callback of a subscription cannot be called with the arguments that it would get."""
    for name, callback in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
        check_callback(name, callback, ("partitions",))
    check_callback("on_commit", on_commit, ("error", "offsets"))
