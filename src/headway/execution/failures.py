"""Decides what follows from a failed attempt, logs it, and sends records that are not retried here to their store.

All of this runs without the dispatch's lock, because it calls users' code, including log handlers.
"""

import logging
import random
import threading
from collections import deque
from typing import Any, Protocol

from headway.core.engine import suspects
from headway.core.engine.work import FinalOutcome, Work
from headway.core.retry import Again, GiveUp, Later, Retries, Verdict, failure_behind
from headway.core.user_errors import description_of
from headway.errors import HandlerError
from headway.execution.failure_log import FailureLog
from headway.execution.jobs import RecordWork
from headway.execution.tracebacks import ExcInfo, Tracebacks

log = logging.getLogger(__name__)


class Letters(Protocol):
    """A store of dead letters. It calls `Dispatch.stored` or `Dispatch.not_stored` for each."""

    def send(self, work: RecordWork, error: BaseException, reason: str) -> None: ...


class Schedules(Protocol):
    """A store of records to be retried much later. It reports as `Letters` does, or to `Dispatch.not_scheduled`."""

    def send(self, work: RecordWork, error: BaseException, delay: Any) -> None: ...


class Failures:
    """Decides about failed attempts, and has the stores for records that are not retried here, if there are any.

    Args:
        retries: The rule that decides.
        letters: The store of dead letters.
        schedules: The store of records to be retried much later.
        is_supervised: True if a supervisor takes care of records that kill this process.
    """

    def __init__(
        self,
        retries: Retries,
        letters: Letters | None = None,
        schedules: Schedules | None = None,
        *,
        is_supervised: bool = False,
    ) -> None:
        self._retries = retries
        self._letters = letters
        self._schedules = schedules
        self._is_supervised = is_supervised
        self._storing = threading.Lock()
        self._tracebacks = Tracebacks()
        self._attempts = FailureLog(log, logging.WARNING, self._tracebacks)
        self._delays = FailureLog(log, logging.ERROR, self._tracebacks)

    def decide(self, work: RecordWork, error: BaseException, now: float) -> Verdict:
        """Return the verdict on a failed attempt."""
        random_number = random.random()  # noqa: S311 - it spreads retries
        death = suspects.as_death(error)
        if death is None or not (self._letters or self._is_supervised):
            verdict = self._retries.decide(work.record, work.attempt, error, now, random_number, work.untried)
        else:
            verdict = suspects.decide(self._retries, work.record, work.attempt, death, now, random_number, work.untried)
        if isinstance(verdict, Again) and verdict.at > work.not_after:  # it will have expired, so it need not wait
            return verdict._replace(at=max(now, work.not_after))
        return verdict

    def act_on(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> HandlerError | None:
        """Log a failure, and send a record that is not retried here to its store.

        Returns the error that must end the run if there is no such store.
        """
        if isinstance(verdict, Again):
            self._log_retry(work, error, verdict, now)
        elif self.is_stored(verdict):
            if not isinstance(verdict, Later) or not self._schedules:
                log_dead_letter(work, error, verdict.reason, self._tracebacks.of(error, now))
            self.store(work, FinalOutcome(error, verdict))
        else:
            return no_dead_letters(work, error, verdict.reason)
        return None

    def _log_retry(self, work: RecordWork, error: BaseException, verdict: Again, now: float) -> None:
        topic, seconds = work.partition.topic, max(0.0, verdict.at - now)
        if verdict.delay_error:
            sentence = "A function of the retries failed for %r, so the default decides: %s"
            self._delays.log(topic, now, verdict.delay_error, sentence, work.record)
        sentence = "%r failed at attempt %d, again in %.3g s: %s"
        if verdict.untried:
            log.debug(sentence, work.record, work.attempt, seconds, description_of(error))
        else:
            self._attempts.log(topic, now, error, sentence, work.record, work.attempt, seconds)

    def log_totals(self, now: float) -> None:
        """Log how many failures were held back, once a second. Call it often."""
        self._attempts.log_totals(now)
        self._delays.log_totals(now)

    def end(self, now: float) -> None:
        """Log the failures that were held back. Call it at the end of the run."""
        self._attempts.end(now)
        self._delays.end(now)

    def is_stored(self, verdict: GiveUp | Later) -> bool:
        """Return whether there is a store for records with this verdict."""
        return bool(self._letters or (self._schedules and isinstance(verdict, Later)))

    def store_all(self, works: deque[RecordWork]) -> None:
        """Send the dead letters or schedules of these works, and remove the works from the queue.

        Any thread can call this, but only one works at a time: a store can report within its call and lead here again,
        and then the outer call sends the rest.
        """
        while works and self._storing.acquire(blocking=False):
            try:
                while works:
                    work = works.popleft()
                    if work.outcome:
                        self.store(work, work.outcome)
            finally:
                self._storing.release()

    def store(self, work: RecordWork, outcome: FinalOutcome) -> None:
        """Send the dead letter or schedule of a work."""
        error, verdict = outcome
        if isinstance(verdict, Later) and self._schedules:
            self._schedules.send(work, error, verdict.delay)
        elif self._letters and verdict:
            self._letters.send(work, error, verdict.reason)


def log_dead_letter(work: Work[Any], error: BaseException, reason: str, trace: ExcInfo | None = None) -> None:
    """Log that a record becomes a dead letter, with the error's traceback if it is given."""
    description = description_of(failure_behind(error))
    log.error("%r becomes a dead letter, as %s: %s", work.record, reason, description, exc_info=trace)


def no_dead_letters(work: Work[Any], error: BaseException, reason: str) -> HandlerError:
    """Return the error for a record that failed for good when there is no dead-letter topic."""
    description = description_of(failure_behind(error))
    failure = HandlerError(
        f"{work.record!r} failed for good ({reason}): {description}. The next run will handle it "
        "again. Name a dead_letter_topic to keep such records and continue."
    )
    failure.__cause__ = error
    return failure
