"""The control thread: it fetches, answers rebalances and commits, and never runs a handler.

Executors take their work from the dispatch by themselves. Between turns the control thread waits for one descriptor,
which Kafka, the dispatch and `stop` write to. All slots may be busy for any time: turns go on, so rebalances are
answered.
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

# While a level is asked for no records, records that Kafka has for it may wake no thread.
_SERVE_EVERY = 0.1
_TURN_EVERY = 1.0
# The least seconds for the commit of a hand-over, however long its handlers have taken.
_LEAST_FOR_COMMIT = 1.0
_LEAST_FOR_CALLBACK = 1.0  # seconds for `on_revoke`, likewise
_PLACES_TOLD_WITHIN = 1.0  # seconds for the places that were sought, at the end of the run


class Executor(Protocol):
    """A runner of handlers; see `Handlers`."""

    def start(self, jobs: Sequence[Job]) -> None: ...
    def close(self, timeout: float) -> None: ...


class ControlLoop:
    """The turns of the control thread."""

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
        """Do all that is due, and wait until more is; raises `HandlerError` or a callback's error if one is due."""
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
        """Wait for the running handlers of these partitions and for `on_revoke`, and commit; others go on meanwhile.

        A hand-over within that of another level ends with the other one, for which a group waits, too.
        """
        leaving = set(partitions)
        now = time.monotonic()
        before, self._hand_over_until = self._hand_over_until, min(self._hand_over_until, now + self._hand_over_timeout)
        with self._dispatch.lock:
            self._dispatch.engine.retire(leaving)
        try:
            self._wait_for_handlers(leaving, self._hand_over_until - _reserve(self._hand_over_until - now))
        finally:  # completed records are committed after any end of the wait, Ctrl-C too
            self._dispatch.unwatch()
            try:
                if self._tell_revoked(leaving, self._hand_over_until, self._serve_others):
                    self._commit(leaving, max(self._hand_over_until, time.monotonic() + _LEAST_FOR_COMMIT))
            finally:
                self._hand_over_until = before
                self._wake.set()  # events of other levels may have been overheard

    def _tell_revoked(
        self, partitions: Collection[TopicPartition], until: float, serve: Callable[[float], bool]
    ) -> bool:
        """Wait for `on_revoke`, at least a second, and serve others; return whether what is done may be committed.

        What still runs is given up before: nothing may become done behind the back of `on_revoke`.
        """
        if self.callbacks.hears_of_revoked:
            self._dispatch.give_up_running(partitions)
        told = self.callbacks.revoked(partitions)
        if told is None:
            return True
        until = max(until, time.monotonic() + _LEAST_FOR_CALLBACK)
        while not told.done():
            now = time.monotonic()
            if now >= until:
                log.warning(
                    "on_revoke has not returned in time: what is not committed of %d partitions is handled again.",
                    len(partitions),
                )
                return False
            if not serve(now):
                self._wake.wait(max(0.0, min(until - time.monotonic(), _SERVE_EVERY)))
        return told.exception() is None

    def _commit(self, leaving: Collection[TopicPartition], until: float) -> None:
        """Commit the completed records of these partitions; others go on, and their errors are raised at the end."""
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
                log.warning("%d records are handed over while their handlers run, and are handled again.", running)
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
        """Give up the running handlers and call `on_revoke`, until this time, and a second at least.

        The completed records are then to be committed, by `commit_last`.
        """
        self._dispatch.abandon()
        told_until, self._hand_over_timeout = min(until, time.monotonic() + self._hand_over_timeout), 0.0
        partitions = self.fetching.partitions()
        may_commit = False
        try:
            may_commit = self._tell_revoked(partitions, told_until, lambda now: False)
        finally:
            if not may_commit:  # Ctrl-C, too, ends the wait without an answer
                self.fetching.let_go(partitions)

    def commit_last(self, until: float) -> None:
        """Commit the completed records, until this time, and a second at least."""
        now = time.monotonic()
        self.fetching.move_sought(min(until, now + _PLACES_TOLD_WITHIN))
        self._leaves_until = max(until, now + _LEAST_FOR_COMMIT)
        for _ in self.commits.commit(None, self._leaves_until):
            pass
        self.commits.forget()

    def wait_for_callbacks(self, until: float) -> None:
        """Wait until a time for the callbacks that were told of the end, at least a second."""
        self.callbacks.wait(max(_LEAST_FOR_CALLBACK, until - time.monotonic()))


def _reserve(seconds: float) -> float:
    """Return how many seconds of a hand-over are for its commit."""
    return min(_LEAST_FOR_COMMIT, seconds / 4)
