"""The control thread: it fetches, answers rebalances and commits, and never runs a handler.

Executors take their work from the dispatch by themselves. Between turns it waits for one descriptor, which Kafka,
the dispatch and `stop` write to. All slots may be busy for as long as they like: turns go on, so rebalances are
answered.
"""

import logging
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from headway.kafka.level_consumers import LevelConsumers
from headway.kafka.wake import Wake
from headway.parallel.committing import Committing
from headway.parallel.dispatch import Dispatch, Job
from headway.parallel.intake import Intake
from headway.records import TopicPartition

log = logging.getLogger(__name__)

# While a level is asked for nothing, what Kafka has for it may wake nobody.
_SERVE_EVERY = 0.1
_LONGEST_WAIT = 1.0


class Executor(Protocol):
    """What runs handlers; see `Calls`."""

    def start(self, jobs: Sequence[Job]) -> None: ...
    def close(self, timeout: float) -> None: ...


class Control:
    """The turns of one thread."""

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wake,
        committing: Committing,
        *,
        buffer: int,
        hand_over_timeout: float,
    ) -> None:
        self._dispatch = dispatch
        self._wake = wake
        self._committing = committing
        self._hand_over_timeout = hand_over_timeout
        self.intake = Intake(dispatch, levels, buffer, self._hand_over)

    def turn(self) -> None:
        """Do what there is to do, and wait until there is more; raises `HandlerError` where one is due."""
        if self._dispatch.failure:
            raise self._dispatch.failure
        now = time.monotonic()
        more = self.intake.fetch(now, self._dispatch.paused or self._dispatch.ending)
        self._dispatch.feed()
        self._committing.turn(now)
        if not more:
            self._wake.wait(self._longest_wait(time.monotonic()))

    def _longest_wait(self, now: float) -> float:
        turns = [now + _LONGEST_WAIT, self._committing.next_turn(now)]
        if self._dispatch.paused or self._dispatch.ending or self._dispatch.work_remaining:
            turns.append(now + _SERVE_EVERY)
        turns.append(self._dispatch.next_change(now) or turns[0])
        return max(0.0, min(turns) - now)

    def _hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for what runs of these, and commit; other partitions go on meanwhile."""
        leaving = set(partitions)
        deadline = time.monotonic() + self._hand_over_timeout
        with self._dispatch.lock:
            self._dispatch.engine.retire(leaving)
        try:
            while running := self._dispatch.is_running(leaving):
                now = time.monotonic()
                if now >= deadline:
                    log.warning("%d records are handed over while their handlers run, and are handled again.", running)
                    break
                more = self.intake.fetch(now, self._dispatch.paused or self._dispatch.ending)
                self._dispatch.feed()
                if not more and self._dispatch.is_running(leaving):
                    now = time.monotonic()
                    until = min(deadline, now + _SERVE_EVERY, self._dispatch.next_change(now) or deadline)
                    self._wake.wait(max(0.0, until - now))
        finally:  # whatever ends it, Ctrl-C too: what is done is done
            self._dispatch.unwatch()
            self._committing.commit(leaving)
            self._wake.set()  # others' events may have been overheard

    def leave(self) -> None:
        """Commit what is done; what still runs is waited for no more, whoever takes its partition."""
        self._dispatch.abandon()
        self._hand_over_timeout = 0.0
        self._committing.commit()
        self._committing.forget()
