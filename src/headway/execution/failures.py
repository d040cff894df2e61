"""Decides what follows a failed attempt, logs the failure, and stores records that this consumer does not retry.

The dispatch's lock is not held during any of this, because the user's code is called, which includes log handlers.
"""

import logging
import random
import threading
from collections import deque
from typing import Any, Protocol

from headway.core.engine import suspects
from headway.core.engine.attempt import Attempt, FinalOutcome
from headway.core.retry import Again, GiveUp, KeepInPlace, Later, Move, Retries, Verdict, failure_behind
from headway.core.user_errors import description_of
from headway.errors import HandlerError
from headway.execution.failure_log import FailureLog
from headway.execution.jobs import RecordAttempt
from headway.execution.tracebacks import ExcInfo, Tracebacks

log = logging.getLogger(__name__)


class Letters(Protocol):
    """Stores dead letters, and calls `Dispatch.stored` or `Dispatch.not_stored` for each of them."""

    def send(self, attempt: RecordAttempt, error: BaseException, reason: str) -> None: ...


class Schedules(Protocol):
    """Stores records that will be retried much later.

    For each, calls `Dispatch.stored`, `not_stored` or `not_scheduled`.
    """

    def send(self, attempt: RecordAttempt, error: BaseException, delay: Any) -> None: ...


class Moves(Protocol):
    """Moves records to other topics, and calls `Dispatch.stored` or `Dispatch.not_stored` for each of them."""

    def send(self, attempt: RecordAttempt, move: Move) -> None: ...


class Failures:
    """Decides what follows a failed attempt, and stores records that this consumer does not retry.

    Args:
        retries: The rule that decides what follows a failed attempt.
        letters: The store of dead letters, if there is one.
        schedules: The store of records that will be retried much later, if there is one.
        moves: The store of records that an operator moves, if there is one.
        is_supervised: True if a supervisor takes care of records that kill this process.
    """

    def __init__(
        self,
        retries: Retries,
        letters: Letters | None = None,
        schedules: Schedules | None = None,
        moves: Moves | None = None,
        *,
        is_supervised: bool = False,
    ) -> None:
        self._retries = retries
        self._letters = letters
        self._schedules = schedules
        self._moves = moves
        self._is_supervised = is_supervised
        self._storing = threading.Lock()
        self._tracebacks = Tracebacks()
        self._attempts = FailureLog(log, logging.WARNING, self._tracebacks)
        self._delays = FailureLog(log, logging.ERROR, self._tracebacks)

    def decide(self, attempt: RecordAttempt, error: BaseException, now: float) -> Verdict:
        """Decide whether the record of a failed attempt is retried, is retried much later, or has failed for good."""
        random_number = random.random()  # noqa: S311 - not for security: it spreads retries over time
        death = suspects.as_death(error)
        if death is None or not (self._letters or self._is_supervised):
            verdict = self._retries.decide(attempt.record, attempt.number, error, now, random_number, attempt.untried)
        else:
            verdict = suspects.decide(
                self._retries, attempt.record, attempt.number, death, now, random_number, attempt.untried
            )
        if (
            isinstance(verdict, Again) and verdict.at > attempt.not_after
        ):  # the record will expire before its next attempt
            return verdict._replace(at=max(now, attempt.not_after))
        return verdict

    def final(self, error: BaseException, verdict: Verdict) -> Verdict:
        """Return the verdict, or if records that have failed for good are kept in their place, `KeepInPlace`.

        A record that has killed its process is not kept, because it would kill the process of the next run as well.
        """
        if self._retries.then == "hold" and isinstance(verdict, GiveUp) and suspects.as_death(error) is None:
            return KeepInPlace(verdict)
        return verdict

    def act_on(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict, now: float) -> HandlerError | None:
        """Log a failed attempt, and store its record if the verdict is a dead letter or a much later retry.

        Returns the error that must end the run if there is no store for the record.
        """
        if isinstance(verdict, Again):
            self._log_retry(attempt, error, verdict, now)
        elif isinstance(verdict, KeepInPlace):
            description, trace = description_of(failure_behind(error)), self._tracebacks.of(error, now)
            reason = verdict.instead.reason
            log.error("%r is held, because %s: %s", attempt.record, reason, description, exc_info=trace)
        elif self.is_stored(verdict):
            if not isinstance(verdict, Later) or not self._schedules:
                log_dead_letter(attempt, error, verdict.reason, self._tracebacks.of(error, now))
            self.store(attempt, FinalOutcome(error, verdict))
        else:
            return no_dead_letters(attempt, error, verdict.reason)
        return None

    def _log_retry(self, attempt: RecordAttempt, error: BaseException, verdict: Again, now: float) -> None:
        topic, seconds = attempt.partition.topic, max(0.0, verdict.at - now)
        if verdict.delay_error:
            sentence = "A function of the retries raised an error for %r, so the default delay is used: %s"
            self._delays.log(topic, now, verdict.delay_error, sentence, attempt.record)
        sentence = "%r failed at attempt %d and will be tried again in %.3g s: %s"
        if verdict.untried:
            log.debug(sentence, attempt.record, attempt.number, seconds, description_of(error))
        else:
            self._attempts.log(topic, now, error, sentence, attempt.record, attempt.number, seconds)

    def log_totals(self, now: float) -> None:
        """Log how many failures were held back, at most once a second. Must be called often."""
        self._attempts.log_totals(now)
        self._delays.log_totals(now)

    def end(self, now: float) -> None:
        """Log the failures that were held back. Call it at the end of the run."""
        self._attempts.end(now)
        self._delays.end(now)

    def is_stored(self, verdict: GiveUp | Later) -> bool:
        """Return whether there is a store for records with this verdict."""
        return bool(self._letters or (self._schedules and isinstance(verdict, Later)))

    def store_all(self, attempts: deque[RecordAttempt]) -> None:
        """Send the dead letters, schedules or copies of these attempts, and remove the attempts from the queue.

        Any thread can call this, but only one thread sends at a time. A store can report to the dispatch before its
        `send` returns, and the report can lead to a nested call of this method. The nested call sends nothing, and the
        outer call sends the remaining attempts.
        """
        while attempts and self._storing.acquire(blocking=False):
            try:
                while attempts:
                    attempt = attempts.popleft()
                    if attempt.outcome:
                        self.store(attempt, attempt.outcome)
            finally:
                self._storing.release()

    def store(self, attempt: RecordAttempt, outcome: FinalOutcome) -> None:
        """Store the record of an attempt as a dead letter, as a schedule or in another topic, as the verdict says."""
        error, verdict = outcome
        if isinstance(verdict, Move):
            if self._moves:
                self._moves.send(attempt, verdict)
        elif isinstance(verdict, Later) and self._schedules:
            self._schedules.send(attempt, error, verdict.delay)
        elif self._letters and verdict:
            self._letters.send(attempt, error, verdict.reason)


def log_dead_letter(attempt: Attempt[Any], error: BaseException, reason: str, trace: ExcInfo | None = None) -> None:
    """Log that a record becomes a dead letter. If `trace` is given, the error's traceback is logged with it."""
    description = description_of(failure_behind(error))
    log.error("%r becomes a dead letter, because %s: %s", attempt.record, reason, description, exc_info=trace)


def no_dead_letters(attempt: Attempt[Any], error: BaseException, reason: str) -> HandlerError:
    """Return the error that ends the run because a record failed for good and there is no dead-letter topic."""
    description = description_of(failure_behind(error))
    failure = HandlerError(
        f"{attempt.record!r} failed for good ({reason}): {description}. The next run will handle it "
        "again. Name a dead_letter_topic to keep such records and continue."
    )
    failure.__cause__ = error
    return failure
