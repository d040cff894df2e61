"""The control thread: it alone touches the engine and the consumers, and never runs a handler.

A turn settles what was reported, starts what may run, fetches what is lacking, and commits what is due. Between turns
it waits for one descriptor, which reports, Kafka and `stop` write to. All slots may be busy for as long as they like:
turns go on, so rebalances are answered.
"""

import logging
import random
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from headway.core.engine import Engine
from headway.core.retry import Again, DeadLetter
from headway.core.work import Work
from headway.errors import HandlerError
from headway.kafka.level_consumers import LevelConsumers
from headway.kafka.wake import Wake
from headway.parallel.committing import Committing
from headway.parallel.dead_letters import DeadLetters
from headway.parallel.intake import Intake
from headway.parallel.reports import Reports
from headway.records import ConsumerRecord, TopicPartition

log = logging.getLogger(__name__)

# While a level is asked for nothing, what Kafka has for it may wake nobody.
_SERVE_EVERY = 0.1
_LONGEST_WAIT = 1.0
_LETTER_AGAIN_AFTER = 1.0


class Executor(Protocol):
    """What runs handlers, and reports each work."""

    def start(self, works: Sequence[Work[ConsumerRecord]], running: int) -> None: ...
    def close(self, timeout: float) -> None: ...


class Control:
    """Drives the engine. All but `paused`, `work_remaining` and the reports belongs to one thread at a time."""

    def __init__(
        self,
        engine: Engine[ConsumerRecord],
        levels: LevelConsumers,
        wake: Wake,
        *,
        slots: int,
        buffer: int,
        commit_interval: float,
        hand_over_timeout: float,
    ) -> None:
        self._engine = engine
        self._wake = wake
        self._slots = slots
        self._hand_over_timeout = hand_over_timeout
        self._running: set[Work[Any]] = set()  # those of lost partitions too, until they are reported
        self.handled = Reports(wake)
        self.stored = Reports(wake)
        self.intake = Intake(engine, levels, buffer, self._hand_over)
        self.committing = Committing(engine, levels, commit_interval, time.monotonic())
        self.letters: DeadLetters | None = None
        self.executor: Executor | None = None
        self.paused = False
        self.work_remaining = 0
        self._failure: HandlerError | None = None  # raised when all that was reported with it is settled

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return len(self._running)

    # Turns

    def turn(self) -> None:
        """Do what there is to do, and wait until there is more."""
        now = time.monotonic()
        self._settle(now)
        if self._failure:
            raise self._failure
        self._start(now)
        came = self.intake.fetch(now, self.paused)
        if came:
            self._start(now)
        self.committing.turn(now)
        self.work_remaining = self._engine.work_remaining
        if not came:
            self._wake.wait(self._longest_wait(now))

    def _longest_wait(self, now: float) -> float:
        turns = [now + _LONGEST_WAIT, self.committing.next_turn(now)]
        if self.paused or self._engine.work_remaining:
            turns.append(now + _SERVE_EVERY)
        if not self.paused and len(self._running) < self._slots:
            turns.append(self._engine.next_wake() or turns[0])
        return max(0.0, min(turns) - now)

    def _start(self, now: float) -> None:
        free = self._slots - len(self._running)
        if free <= 0 or self.paused or self.executor is None:
            return
        if works := self._engine.take(free, now):
            self._running.update(works)
            self.executor.start(works, len(self._running))

    # Outcomes

    def _settle(self, now: float) -> None:
        for work, error in self.handled.take():
            if error is None:
                self._finish(work, now)
            else:
                self._fail(work, error, now)
        for work, error in self.stored.take():
            if error is None:
                self._finish(work, now)
            else:
                self._running.discard(work)
                self._engine.retry(work, now + _LETTER_AGAIN_AFTER, error, now)

    def _finish(self, work: Work[Any], now: float) -> None:
        self._running.discard(work)
        self._engine.finish(work, now)

    def _fail(self, work: Work[Any], error: BaseException, now: float) -> None:
        verdict = self._engine.fail(work, error, now, random.random())  # noqa: S311 - it spreads retries
        if isinstance(verdict, DeadLetter) and self.letters:
            log.error("%r becomes a dead letter, as %s: %r", work.record, verdict.reason, error)
            self.letters.send(work, error, verdict.reason)  # and until it is stored, the work runs
            return
        self._running.discard(work)
        if isinstance(verdict, DeadLetter):
            self._failure = self._failure or _no_dead_letters(work, error, verdict.reason)
        elif verdict:
            _log_retry(work, error, verdict, now)

    # Partitions that leave

    def _hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for what runs of these, and commit; nothing new starts meanwhile."""
        leaving = set(partitions)
        deadline = time.monotonic() + self._hand_over_timeout
        while left := [work for work in self._running if work.assignment.current and work.partition in leaving]:
            now = time.monotonic()
            if now >= deadline:
                log.warning("%d records are handed over while their handlers run, and are handled again.", len(left))
                break
            self._wake.wait(deadline - now)
            self._settle(time.monotonic())
        self.committing.commit(leaving)

    # The end

    def drain(self) -> None:
        """A turn in which nothing new starts: let what runs end."""
        self.paused = True
        self.turn()

    def leave(self) -> None:
        """Commit what is done; what still runs is waited for no more, whoever takes its partition."""
        self._hand_over_timeout = 0.0
        for work, error in self.handled.take() + self.stored.take():
            if error is None:
                self._finish(work, time.monotonic())
        self.committing.commit()
        self.committing.forget()
        self.work_remaining = self._engine.work_remaining


def _log_retry(work: Work[Any], error: BaseException, verdict: Again, now: float) -> None:
    if verdict.delay_error:
        log.error("The delay function of the retries failed, so the backoff decides: %r", verdict.delay_error)
    seconds = verdict.at - now
    log.warning("%r failed at attempt %d, again in %.3g s: %r", work.record, work.attempt, seconds, error)


def _no_dead_letters(work: Work[Any], error: BaseException, reason: str) -> HandlerError:
    failure = HandlerError(
        f"{work.record!r} failed for good ({reason}): {error!r}. It is not done, and comes again after a restart. "
        "Name a dead_letter_topic to keep such records and go on."
    )
    failure.__cause__ = error
    return failure
