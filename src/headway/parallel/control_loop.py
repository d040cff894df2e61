"""The control thread, which fetches, takes part in rebalances and commits. It never runs handlers.

Executors take jobs from the dispatch without the control thread. Between two rounds, the control thread waits on one
file descriptor, to which librdkafka, the dispatch and `stop` write. So the member stays in its group even while all
slots are busy.
"""

import logging
import math
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from headway.core.engine.lanes import Ordering
from headway.execution.dispatch import Dispatch
from headway.execution.gates.expiry_gate import ExpiryGate
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.parallel.assignment_log import AssignmentLog
from headway.parallel.brought_along import BroughtAlong
from headway.parallel.callbacks import Callbacks
from headway.parallel.commits import Commits
from headway.parallel.fetching import Fetching
from headway.parallel.group_rate import GroupRate, SharedRate
from headway.parallel.keyless_log import KeylessLog
from headway.parallel.options import ParallelOptions
from headway.parallel.run_parts import RunParts
from headway.parallel.tenancy import Tenancy
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from headway.settings.config import ParallelSettings

log = logging.getLogger(__name__)

# The longest waits between two rounds, in seconds. The shorter one applies while records are buffered: if the buffer is
# full, nothing is fetched, so no arriving record wakes this thread, but the thread must still take part in rebalances.
_SERVE_EVERY = 0.1
_ROUND_EVERY = 1.0
# The minimum time that the commit and `on_revoke` have in a hand-over, even if the handlers have used up the whole
# hand-over timeout, in seconds.
_LEAST_FOR_COMMIT = 1.0
_LEAST_FOR_CALLBACK = 1.0
_SEEKS_ANSWERED_WITHIN = 1.0  # how long unfinished seeks have at the end of the run, in seconds


class Watcher(Protocol):
    """Looks at the consumer on the control thread."""

    def look(self, now: float) -> None:
        """Look, if it is time. Never waits."""

    def close(self) -> None:
        """Abandon open requests, because the clients are about to be closed."""


class ControlLoop:
    """Runs the rounds of the control thread. Each round fetches, commits, and updates rate limits and callbacks."""

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wakeup,
        options: ParallelOptions,
        settings: ParallelSettings,
        tenancy: Tenancy | None,
        rates: Sequence[SharedRate],
        parts: RunParts,
    ) -> None:
        self._dispatch = dispatch
        self._wake = wake
        self._assignment_log = AssignmentLog(levels)
        in_lanes = options.max_concurrency > 1 and Ordering(options.ordering) is Ordering.KEY
        self._keyless_log = KeylessLog(dispatch) if in_lanes else None
        self._hand_over_timeout = options.hand_over_timeout
        self._hand_over_until = math.inf  # the end of the outermost hand-over; see `hand_over`
        self._leaves_until = math.inf
        self.callbacks = Callbacks(wake)
        self.rate = GroupRate(settings.kafka, settings.group, levels, rates, dispatch, wake)
        expiry = ExpiryGate(keeps=options.on_expired == "dead_letter")
        brought_along = BroughtAlong(settings.group, dispatch, expiry, options.expires_after)
        self.fetching = Fetching(dispatch, levels, self.callbacks, options, self, brought_along, tenancy)
        interval, waits = options.commit_interval(settings), options.commit_mode == "sync"
        self.commits = Commits(dispatch, levels, self.fetching, self.callbacks, parts, interval, waits=waits)
        self.watchers: tuple[Watcher, ...] = ()
        """What looks at the consumer once in each round: only what is measured or probed has any."""

    def run_round(self) -> None:
        """Do everything that is due, and then wait for an event or the next due time.

        Raises the error that must end the run, if there is one.
        """
        if failure := self._dispatch.failure or self.callbacks.failure:
            raise failure
        now = time.monotonic()
        more = self._fetch(now)
        self.commits.serve(now)
        fed_at = self._dispatch.feed()
        if not more:
            self._wake.wait(self._longest_wait(fed_at, time.monotonic()))

    def _fetch(self, now: float) -> bool:
        waits = self._dispatch.paused or self._dispatch.ending or self.commits.is_waited_for
        more = self.fetching.fetch(now, waits)
        self.rate.update(now)
        self._assignment_log.check(now)
        if self.watchers:
            self._look(now)
        if self._keyless_log:
            self._keyless_log.check(now)
        return more

    def _look(self, now: float) -> None:
        for watcher in self.watchers:
            try:
                watcher.look(now)
            except Exception:  # what only looks must not end the run
                log.exception("The consumer could not be measured. It continues.")

    def _longest_wait(self, fed_at: float, now: float) -> float:
        times = [now + _ROUND_EVERY, self.commits.next_time(now)]
        if self._dispatch.paused or self._dispatch.ending or self._dispatch.work_remaining:
            times.append(now + _SERVE_EVERY)
        if change := self._dispatch.next_change(fed_at):
            times.append(change)
        return max(0.0, min(times) - now)

    def hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for the running handlers of these partitions, call `on_revoke`, and then commit.

        During the waits, records of other partitions are fetched and started, so a hand-over of another level can begin
        within this one. The inner hand-over must end no later than the outer one, because the outer level's group waits
        for both.
        """
        leaving = set(partitions)
        now = time.monotonic()
        before, self._hand_over_until = self._hand_over_until, min(self._hand_over_until, now + self._hand_over_timeout)
        with self._dispatch.lock:
            self._dispatch.engine.retire(leaving)
        try:
            # The last second of the hand-over is reserved for the commit. In a short hand-over, it is the last quarter.
            reserved = min(_LEAST_FOR_COMMIT, (self._hand_over_until - now) / 4)
            self._wait_for_handlers(leaving, self._hand_over_until - reserved)
        finally:  # if Ctrl-C ends the wait, completed records must be committed nevertheless
            self._dispatch.unwatch()
            try:
                if self._call_on_revoke(leaving, self._hand_over_until, serves_others=True):
                    self._commit(leaving, max(self._hand_over_until, time.monotonic() + _LEAST_FOR_COMMIT))
            finally:
                self._hand_over_until = before
                self._wake.set()  # the wait might have consumed a wake-up that was meant for another level

    def _call_on_revoke(self, partitions: Collection[TopicPartition], until: float, *, serves_others: bool) -> bool:
        """Call `on_revoke`, and wait until the call has returned. Returns whether the caller can commit.

        With `serves_others`, records of other partitions are fetched and started during the wait.

        The wait ends at the time `until`, or after one second if that is later. Attempts that are still running are
        abandoned before the call, so that no record is completed after the call has begun.
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
                    "on_revoke has not returned in time. Nothing is committed, so the uncommitted records of %d "
                    "partitions will be handled again.",
                    len(partitions),
                )
                return False
            if not (serves_others and self._serve_others(now)):
                self._wake.wait(max(0.0, min(until - time.monotonic(), _SERVE_EVERY)))
        return call.exception() is None

    def _commit(self, leaving: Collection[TopicPartition], until: float) -> None:
        """Commit the completed records of these partitions.

        During the commit, records of other partitions are fetched and started. If fetching raises an error, this method
        raises the error only after the commit.
        """
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
                log.warning(
                    "The handlers of %d records have not ended in time. Their partitions are handed over, so these "
                    "records will be handled again.",
                    running,
                )
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
        """Abandon the running handlers, and call `on_revoke` for all partitions.

        Waits for `on_revoke` until the given time, or for one second if that is later. Afterwards, the caller must call
        `commit_last` to commit the completed records.
        """
        self._dispatch.abandon()
        called_until, self._hand_over_timeout = min(until, time.monotonic() + self._hand_over_timeout), 0.0
        partitions = self.fetching.partitions()
        may_commit = False
        try:
            may_commit = self._call_on_revoke(partitions, called_until, serves_others=False)
        finally:
            if not may_commit:  # `on_revoke` has raised or was late, or Ctrl-C has ended the wait
                self.fetching.let_go(partitions)

    def commit_last(self, until: float) -> None:
        """Commit the completed records of all partitions.

        Waits until the given time, or for one second if that is later.
        """
        now = time.monotonic()
        self.fetching.finish_seeks(min(until, now + _SEEKS_ANSWERED_WITHIN))
        self._leaves_until = max(until, now + _LEAST_FOR_COMMIT)
        for _ in self.commits.commit(None, self._leaves_until):
            pass
        self.commits.forget()
        for watcher in self.watchers:
            watcher.close()

    def wait_for_callbacks(self, until: float) -> None:
        """Wait for running callbacks until the given time, or for one second if that is later."""
        self.callbacks.wait(max(_LEAST_FOR_CALLBACK, until - time.monotonic()))
