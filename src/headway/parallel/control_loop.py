"""The control thread: it fetches, answers rebalances and commits, and never runs a handler.

Executors take their work from the dispatch by themselves. Between turns it waits for one descriptor, which Kafka,
the dispatch and `stop` write to. All slots may be busy for as long as they like: turns go on, so rebalances are
answered.
"""

import logging
import math
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from headway.execution.dispatch import Dispatch, Job
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.parallel.commits import Commits
from headway.parallel.fetching import Fetching
from headway.records import TopicPartition
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

# While a level is asked for nothing, what Kafka has for it may wake nobody.
_SERVE_EVERY = 0.1
_LONGEST_WAIT = 1.0
# Seconds that the commit of a hand-over has, whatever its handlers have taken.
_LEAST_FOR_COMMIT = 1.0
_LEAVE_WITHIN = 10.0


class Executor(Protocol):
    """What runs handlers; see `Calls`."""

    def start(self, jobs: Sequence[Job]) -> None: ...
    def close(self, timeout: float) -> None: ...


class ControlLoop:
    """The turns of one thread."""

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wakeup,
        *,
        buffer: int,
        hand_over_timeout: float,
        commit_interval: float,
        waits_for_commits: bool,
    ) -> None:
        self._dispatch = dispatch
        self._wake = wake
        self._hand_over_timeout = hand_over_timeout
        self._hand_over_until = math.inf  # of the outermost, while one is within another
        self._leaves_until = math.inf
        self.intake = Fetching(dispatch, levels, buffer, self._hand_over)
        self.committing = Commits(
            dispatch,
            levels,
            self.intake.give_up,
            self.intake.rejoin,
            commit_interval,
            time.monotonic(),
            waits=waits_for_commits,
        )

    def turn(self) -> None:
        """Do what there is to do, and wait until there is more; raises `HandlerError` where one is due."""
        if self._dispatch.failure:
            raise self._dispatch.failure
        now = time.monotonic()
        more = self._fetch(now)
        self.committing.turn(now)
        self._dispatch.feed()
        if not more:
            self._wake.wait(self._longest_wait(time.monotonic()))

    def _fetch(self, now: float) -> bool:
        waits = self._dispatch.paused or self._dispatch.ending or self.committing.is_waited_for
        return self.intake.fetch(now, waits)

    def _longest_wait(self, now: float) -> float:
        turns = [now + _LONGEST_WAIT, self.committing.next_turn(now)]
        if self._dispatch.paused or self._dispatch.ending or self._dispatch.work_remaining:
            turns.append(now + _SERVE_EVERY)
        turns.append(self._dispatch.next_change(now) or turns[0])
        return max(0.0, min(turns) - now)

    def _hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for what runs of these, and commit; other partitions go on meanwhile.

        Within the hand-over of another level it ends with that one, for which a group waits, too.
        """
        leaving = set(partitions)
        now = time.monotonic()
        before, self._hand_over_until = self._hand_over_until, min(self._hand_over_until, now + self._hand_over_timeout)
        with self._dispatch.lock:
            self._dispatch.engine.retire(leaving)
        try:
            self._wait_for_handlers(leaving, self._hand_over_until - _reserve(self._hand_over_until - now))
        finally:  # whatever ends it, Ctrl-C too: what is done is done
            self._dispatch.unwatch()
            try:
                self._commit(leaving, max(self._hand_over_until, time.monotonic() + _LEAST_FOR_COMMIT))
            finally:
                self._hand_over_until = before
                self._wake.set()  # others' events may have been overheard

    def _commit(self, leaving: Collection[TopicPartition], until: float) -> None:
        """Commit what is done of these; others go on, and what they raise is raised when it is over."""
        self._hand_over_until = until = min(until, self._leaves_until)
        raised: BaseException | None = None
        for _ in self.committing.commit(leaving, until):
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
                now = time.monotonic()
                wake_at = min(until, now + _SERVE_EVERY, self._dispatch.next_change(now) or until)
                self._wake.wait(max(0.0, wake_at - now))

    def _serve_others(self, now: float) -> bool:
        more = self._fetch(now)
        self._dispatch.feed()
        return more

    def leave(self) -> None:
        """Commit what is done; what still runs is waited for no more, whoever takes its partition."""
        self._dispatch.abandon()
        self._hand_over_timeout = 0.0
        self._leaves_until = time.monotonic() + _LEAVE_WITHIN
        for _ in self.committing.commit(None, self._leaves_until):
            pass
        self.committing.forget()


def _reserve(seconds: float) -> float:
    """How much of the time of a hand-over is for its commit."""
    return min(_LEAST_FOR_COMMIT, seconds / 4)
