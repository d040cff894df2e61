"""The end of a work that failed: the verdict, and the store that takes its record if it is not tried again here.

All of this runs without the dispatch's lock, since it calls users' code, log handlers included.
"""

import logging
import random
import threading
from collections import deque
from typing import Any, Protocol

from headway.core.engine import suspects
from headway.core.engine.work import FinalOutcome, Work
from headway.core.retry import Again, DeadLetter, Later, Retries, Verdict, failure_behind
from headway.core.user_errors import description_of
from headway.errors import HandlerError
from headway.execution.failure_log import FailureLog
from headway.execution.jobs import RecordWork
from headway.execution.tracebacks import ExcInfo, Tracebacks

log = logging.getLogger(__name__)


class Letters(Protocol):
    """The store of records that failed for good; reports to `stored`, or to `not_stored`."""

    def send(self, work: RecordWork, error: BaseException, reason: str) -> None: ...


class Schedules(Protocol):
    """The store of records to be tried again much later; reports as `Letters`, or to `not_scheduled`."""

    def send(self, work: RecordWork, error: BaseException, delay: Any) -> None: ...


class Failures:
    """The judge of failed works, with the stores for the records that are not tried again here, if there are any."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._letters: Letters | None = None
        self._schedules: Schedules | None = None
        self._is_supervised = False
        self._storing = threading.Lock()
        self._tracebacks = Tracebacks()
        self._attempts = FailureLog(log, logging.WARNING, self._tracebacks)
        self._delays = FailureLog(log, logging.ERROR, self._tracebacks)

    def begin(self, letters: Letters | None, schedules: Schedules | None, *, is_supervised: bool) -> None:
        """Store records in these stores from now on; `is_supervised` as for `Dispatch.begin`."""
        self._letters, self._schedules, self._is_supervised = letters, schedules, is_supervised

    def decide(self, work: RecordWork, error: BaseException, now: float) -> Verdict:
        """Decide what to do with a work that failed."""
        random_number = random.random()  # noqa: S311 - it spreads retries
        death = suspects.as_death(error)
        if death is None or not (self._letters or self._is_supervised):
            verdict = self._retries.decide(work.record, work.attempt, error, now, random_number, work.untried)
        else:
            verdict = suspects.decide(self._retries, work.record, work.attempt, death, now, random_number, work.untried)
        if isinstance(verdict, Again) and verdict.at > work.not_after:  # then it has expired: it need not wait
            return verdict._replace(at=max(now, work.not_after))
        return verdict

    def tell(self, work: RecordWork, error: BaseException, verdict: Verdict, now: float) -> HandlerError | None:
        """Tell the log of a failure, and store a record that failed for good; return the error if nothing keeps it."""
        if isinstance(verdict, Again):
            self._tell_retry(work, error, verdict, now)
        elif self.is_stored(verdict):
            if not isinstance(verdict, Later) or not self._schedules:
                log_dead_letter(work, error, verdict.reason, self._tracebacks.of(error, now))
            self.store(work, FinalOutcome(error, verdict))
        else:
            return no_dead_letters(work, error, verdict.reason)
        return None

    def _tell_retry(self, work: RecordWork, error: BaseException, verdict: Again, now: float) -> None:
        topic, seconds = work.partition.topic, max(0.0, verdict.at - now)
        if verdict.delay_error:
            sentence = "A function of the retries failed for %r, so a default decides: %s"
            self._delays.tell(topic, now, verdict.delay_error, sentence, work.record)
        sentence = "%r failed at attempt %d, again in %.3g s: %s"
        if verdict.untried:
            log.debug(sentence, work.record, work.attempt, seconds, description_of(error))
        else:
            self._attempts.tell(topic, now, error, sentence, work.record, work.attempt, seconds)

    def tell_sums(self, now: float) -> None:
        """Tell the log how many attempts failed that it was not told of; to be called every now and then."""
        self._attempts.tell_sums(now)
        self._delays.tell_sums(now)

    def end(self, now: float) -> None:
        """Tell the log what it was not told of yet, as the run ends."""
        self._attempts.end(now)
        self._delays.end(now)

    def is_stored(self, verdict: DeadLetter | Later) -> bool:
        """Return whether there is a store for a record with this verdict."""
        return bool(self._letters or (self._schedules and isinstance(verdict, Later)))

    def store_all(self, works: deque[RecordWork]) -> None:
        """Send the outcomes of these works, and take each out; for any thread, one at a time.

        A store may report within its call, and so lead here again: then the call under way goes on with the rest.
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
        """Send a work's dead letter or schedule."""
        error, verdict = outcome
        if isinstance(verdict, Later) and self._schedules:
            self._schedules.send(work, error, verdict.delay)
        elif self._letters and verdict:
            self._letters.send(work, error, verdict.reason)


def log_dead_letter(work: Work[Any], error: BaseException, reason: str, trace: ExcInfo | None = None) -> None:
    """Tell the log of a record that becomes a dead letter, with the error's traceback if there is one to be told."""
    told = description_of(failure_behind(error))
    log.error("%r becomes a dead letter, as %s: %s", work.record, reason, told, exc_info=trace)


def no_dead_letters(work: Work[Any], error: BaseException, reason: str) -> HandlerError:
    """Return the error for a record that failed for good without a dead-letter topic to keep it."""
    description = description_of(failure_behind(error))
    failure = HandlerError(
        f"{work.record!r} failed for good ({reason}): {description}. It is not done, and comes again after a "
        "restart. Name a dead_letter_topic to keep such records and go on."
    )
    failure.__cause__ = error
    return failure
