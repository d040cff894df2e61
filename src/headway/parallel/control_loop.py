"""The control thread: it fetches, answers rebalances and commits, and never runs a handler.

Executors take jobs from the dispatch themselves. Between turns the control thread waits on one descriptor, which Kafka,
the dispatch and `stop` write to. So turns go on, and rebalances are answered, even while all slots are busy.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from headway.core.engine.lanes import Ordering
from headway.execution.dispatch import Dispatch
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.execution.jobs import Job
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.parallel.assignment_log import AssignmentLog
from headway.parallel.brought_along import BroughtAlong
from headway.parallel.callbacks import Callbacks
from headway.parallel.commits import Commits
from headway.parallel.fetching import Fetching
from headway.parallel.group_rate import GroupRate, SharedRate
from headway.parallel.keyless_log import KeylessLog
from headway.parallel.options import ParallelOptions
from headway.parallel.tenancy import Tenancy
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from headway.settings.config import ParallelSettings

log = logging.getLogger(__name__)

# While no records of a level are wanted, records that arrive for it wake no thread.
_SERVE_EVERY = 0.1
_TURN_EVERY = 1.0
# The least seconds for the commit of a hand-over and for `on_revoke`, however long the handlers have taken.
_LEAST_FOR_COMMIT = 1.0
_LEAST_FOR_CALLBACK = 1.0
_SEEKS_ANSWERED_WITHIN = 1.0  # seconds for seeks that are under way at the end of the run


class Executor(Protocol):
    """Runs handlers on threads, in an event loop, or in processes; see `Handlers`."""

    def start(self, jobs: Sequence[Job]) -> None: ...
    def close(self, timeout: float) -> None: ...


class ControlLoop:
    """The turns of the control thread, which serve fetching, commits, callbacks and the group's rates."""

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wakeup,
        options: ParallelOptions,
        settings: ParallelSettings,
        tenancy: Tenancy | None,
        rates: Sequence[SharedRate],
    ) -> None:
        self._dispatch = dispatch
        self._wake = wake
        self._assignment_log = AssignmentLog(levels)
        in_lanes = options.max_concurrency > 1 and Ordering(options.ordering) is Ordering.KEY
        self._keyless_log = KeylessLog(dispatch) if in_lanes else None
        self._hand_over_timeout = options.hand_over_timeout
        self._hand_over_until = math.inf  # of the outermost hand-over, while one is within another
        self._leaves_until = math.inf
        self.callbacks = Callbacks(wake)
        self.rate = GroupRate(settings.kafka, settings.group, levels, rates, dispatch, wake)
        expiry = ExpiryGate(keeps=options.on_expired == "dead_letter")
        brought_along = BroughtAlong(settings.group, partial(dispatch.add, expiry), options.expires_after)
        self.fetching = Fetching(dispatch, levels, self.callbacks, options, self._hand_over, brought_along, tenancy)
        interval, waits = options.commit_interval(settings), options.commit_mode == "sync"
        self.commits = Commits(dispatch, levels, self.fetching, self.callbacks, interval, waits=waits)

    def turn(self) -> None:
        """Do all that is due, then wait until more is. Raises the `HandlerError`, or callback's error, that ends it."""
        if failure := self._dispatch.failure or self.callbacks.failure:
            raise failure
        now = time.monotonic()
        more = self._fetch(now)
        self.commits.turn(now)
        fed_at = self._dispatch.feed()
        if not more:
            self._wake.wait(self._longest_wait(fed_at, time.monotonic()))

    def _fetch(self, now: float) -> bool:
        waits = self._dispatch.paused or self._dispatch.ending or self.commits.is_waited_for
        more = self.fetching.fetch(now, waits)
        self.rate.turn(now)
        self._assignment_log.turn(now)
        if self._keyless_log:
            self._keyless_log.turn(now)
        return more

    def _longest_wait(self, fed_at: float, now: float) -> float:
        turns = [now + _TURN_EVERY, self.commits.next_turn(now)]
        if self._dispatch.paused or self._dispatch.ending or self._dispatch.work_remaining:
            turns.append(now + _SERVE_EVERY)
        turns.append(self._dispatch.next_change(fed_at) or turns[0])
        return max(0.0, min(turns) - now)

    def _hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for running handlers of these partitions and for `on_revoke`, then commit; others go on meanwhile.

        A hand-over that begins within another level's ends with it, because the other level's group waits, too.
        """
        leaving = set(partitions)
        now = time.monotonic()
        before, self._hand_over_until = self._hand_over_until, min(self._hand_over_until, now + self._hand_over_timeout)
        with self._dispatch.lock:
            self._dispatch.engine.retire(leaving)
        try:
            self._wait_for_handlers(leaving, self._hand_over_until - _reserve(self._hand_over_until - now))
        finally:  # completed records are committed however the wait ends, by Ctrl-C, too
            self._dispatch.unwatch()
            try:
                if self._call_on_revoke(leaving, self._hand_over_until, self._serve_others):
                    self._commit(leaving, max(self._hand_over_until, time.monotonic() + _LEAST_FOR_COMMIT))
            finally:
                self._hand_over_until = before
                self._wake.set()  # events of other levels may have been missed during the wait

    def _call_on_revoke(
        self, partitions: Collection[TopicPartition], until: float, serve: Callable[[float], bool]
    ) -> bool:
        """Call `on_revoke`, and wait for it at least a second while others are served. Returns whether to commit.

        Attempts that still run are given up first, so that no record is done after `on_revoke` was called.
        """
        if self.callbacks.has_on_revoke:
            self._dispatch.give_up_running(partitions)
        call = self.callbacks.revoked(partitions)
        if call is None:
            return True
        until = max(until, time.monotonic() + _LEAST_FOR_CALLBACK)
        while not call.done():
            now = time.monotonic()
            if now >= until:
                log.warning(
                    "on_revoke has not returned in time. Uncommitted records of %d partitions are handled again.",
                    len(partitions),
                )
                return False
            if not serve(now):
                self._wake.wait(max(0.0, min(until - time.monotonic(), _SERVE_EVERY)))
        return call.exception() is None

    def _commit(self, leaving: Collection[TopicPartition], until: float) -> None:
        """Commit the completed records of these partitions while others are served; raise their errors at the end."""
        self._hand_over_until = until = min(until, self._leaves_until)
        raised: BaseException | None = None
        for _ in self.commits.commit(leaving, until):
            try:
                if raised is None:
                    self._serve_others(time.monotonic())
            except BaseException as error:
                raised = error
        if raised:
            raise raised

    def _wait_for_handlers(self, leaving: Collection[TopicPartition], until: float) -> None:
        while running := self._dispatch.is_running(leaving):
            now = time.monotonic()
            if now >= until:
                log.warning("%d records are handed over while their handlers run, so they are handled again.", running)
                return
            more = self._serve_others(now)
            if not more and self._dispatch.is_running(leaving):
                wake_at = min(until, now + _SERVE_EVERY, self._dispatch.next_change(now) or until)
                self._wake.wait(max(0.0, wake_at - time.monotonic()))

    def _serve_others(self, now: float) -> bool:
        more = self._fetch(now)
        self._dispatch.feed()
        return more

    def leave(self, until: float) -> None:
        """Give up the running handlers and call `on_revoke`, until this time, but for at least a second.

        Call `commit_last` next, to commit the completed records.
        """
        self._dispatch.abandon()
        called_until, self._hand_over_timeout = min(until, time.monotonic() + self._hand_over_timeout), 0.0
        partitions = self.fetching.partitions()
        may_commit = False
        try:
            may_commit = self._call_on_revoke(partitions, called_until, lambda now: False)
        finally:
            if not may_commit:  # also if Ctrl-C ended the wait
                self.fetching.let_go(partitions)

    def commit_last(self, until: float) -> None:
        """Commit the completed records, until this time, but for at least a second."""
        now = time.monotonic()
        self.fetching.move_sought(min(until, now + _SEEKS_ANSWERED_WITHIN))
        self._leaves_until = max(until, now + _LEAST_FOR_COMMIT)
        for _ in self.commits.commit(None, self._leaves_until):
            pass
        self.commits.forget()

    def wait_for_callbacks(self, until: float) -> None:
        """Wait until this time, but for at least a second, for callbacks that have not returned."""
        self.callbacks.wait(max(_LEAST_FOR_CALLBACK, until - time.monotonic()))


def _reserve(seconds: float) -> float:
    """Return how many seconds of a hand-over are kept for its commit."""
    return min(_LEAST_FOR_COMMIT, seconds / 4)
