"""The ledger of processes that died, and the consequences for the records that were running in them.

When a process dies, any of the records that were running in it can be the cause. So all these records are suspects, and
the death counts as a failed attempt at each of them. A suspect runs alone the next time, so that if a process dies
again, there is only one possible cause.

Invariants: a death adds at least one attempt to each record that was running. A record becomes a dead letter only if a
process dies while the record runs alone. So a record that always kills its process becomes a dead letter after
`max_attempts` deaths, or after `MOST_DEATHS` if `max_attempts` is not set. If other records were running when the
process first died, at least two deaths are needed. Those other records never become dead letters because of this
record.
"""

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from headway.core.engine.attempt import FailedAttempts
from headway.core.retry import Again, GiveUp, Retries, Verdict
from headway.errors import ProcessDiedError

MOST_DEATHS = 3
"""How many deaths make a record a dead letter if `max_attempts` is not set."""

MOST_SUSPECTS = 10_000
"""The highest number of suspects to remember."""


class RecordId(NamedTuple):
    """The identity of a record.

    If a topic is deleted and created again, the timestamp distinguishes the new record at an offset from the old
    record.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class RunningAttempt(NamedTuple):
    """An attempt that was running when its process died.

    `attempt` is its number, counted from 1. `untried` is the number of earlier attempts that do not count.
    """

    record: RecordId
    number: int
    untried: int = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record that was running in processes that died.

    Args:
        record: The identity of the record.
        attempts: The number of attempts at the record. The last attempt ended because its process died.
        untried: The number of attempts that do not count.
        deaths: The number of processes that died while the record was running.
        alone: True if no other record was running in the last process that died.
        how: How the last process ended, as returned by `how_it_ended`.
        first_at: The time of the first death, in seconds since the epoch.
        at: The time of the last death, in seconds since the epoch.
    """

    record: RecordId
    attempts: int
    untried: int
    deaths: int
    alone: bool
    how: str
    first_at: float
    at: float

    def error(self) -> ProcessDiedError:
        """Return the error with which the last attempt failed."""
        return died(self.how, self.deaths, alone=self.alone)

    def failure(self, wall_to_now: float) -> FailedAttempts | None:
        """Return the failed attempts before the last one, or None if there was only one attempt.

        `wall_to_now` is added to a number of seconds since the epoch to get a time of the engine's clock.
        """
        if self.attempts <= 1:
            return None
        error, first_at = self.error(), self.first_at + wall_to_now
        return FailedAttempts(error, self.at + wall_to_now, first_at, self.attempts - 1, self.untried, error)


class Suspects:
    """The ledger of deaths, which is kept in a process that outlives the processes that run handlers.

    The ledger remembers at most `most` records. If there are more, it forgets the oldest.
    """

    def __init__(self, most: int = MOST_SUSPECTS) -> None:
        self._most = most
        self._known: dict[RecordId, Suspect] = {}

    def died(self, running: Sequence[RunningAttempt], how: str, now: float) -> list[Suspect]:
        """Record that a process died during these attempts, and return their records as suspects.

        `now` is in seconds since the epoch.
        """
        return self.note(self._after_death(attempt, len(running) == 1, how, now) for attempt in running)

    def note(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """Add suspects, and return those that were not in this ledger, or that were there with fewer attempts."""
        news = []
        for suspect in suspects:
            known = self._known.get(suspect.record)
            if known is None or known.attempts < suspect.attempts:
                # removed first, so that it is added at the end, after all older suspects
                self._known.pop(suspect.record, None)
                self._known[suspect.record] = suspect
                news.append(suspect)
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return news

    def all(self) -> list[Suspect]:
        """Return all remembered suspects, with the oldest first."""
        return list(self._known.values())

    def _after_death(self, attempt: RunningAttempt, alone: bool, how: str, now: float) -> Suspect:
        known = self._known.get(attempt.record)
        return Suspect(
            record=attempt.record,
            attempts=max(attempt.number, known.attempts + 1 if known else 1),
            untried=max(attempt.untried, known.untried if known else 0),
            deaths=known.deaths + 1 if known else 1,
            alone=alone,
            how=how,
            first_at=known.first_at if known else now,
            at=now,
        )


def decide(
    retries: Retries,
    record: object,
    attempt: int,
    error: ProcessDiedError,
    now: float,
    random_number: float,
    untried: int = 0,
) -> Verdict:
    """Decide by the rules in `retries` what to do with a record after its process died.

    The arguments after `retries` have the same meaning as in `Retries.decide`.
    """
    verdict = retries.decide(record, attempt, error, now, random_number, untried)
    if not error.alone:  # another record may have caused the death
        return Again(now) if isinstance(verdict, GiveUp) else verdict
    if isinstance(verdict, Again) and retries.max_attempts is None and error.deaths >= MOST_DEATHS:
        return GiveUp(f"{error.deaths} processes died while handling it")
    return verdict


def died(how: str, deaths: int, *, alone: bool) -> ProcessDiedError:
    """Return the error for a record whose process has died. `how` is the result of `how_it_ended`.

    >>> print(died(how_it_ended(-9), 2, alone=True))
    The process of the handler was ended by signal 9 (SIGKILL) while it was handling this record.
    >>> print(died(how_it_ended(-9), 1, alone=False))
    The process of the handler was ended by signal 9 (SIGKILL) while it was handling this record and others.
    """
    others = "" if alone else " and others"
    sentence = f"The process of the handler {how} while it was handling this record{others}."
    return ProcessDiedError(sentence, deaths=deaths, alone=alone)


def deaths_of(failure: FailedAttempts | None) -> int:
    """Return how many processes in a row have died while they were handling a record with these failures."""
    death = as_death(failure.error) if failure else None
    return death.deaths if death else 0


def is_suspect(failure: FailedAttempts | None) -> bool:
    """Return whether a record must run alone, because its last process died while other records were running too."""
    death = as_death(failure.error) if failure else None
    return death is not None and not death.alone


def as_death(error: BaseException | None) -> ProcessDiedError | None:
    """Return the error if it is a `ProcessDiedError`, or None."""
    # The type is compared because `isinstance` reads `__class__`, which a user's exception can define in any way.
    return cast(ProcessDiedError, error) if issubclass(type(error), ProcessDiedError) else None


def how_it_ended(code: int | None) -> str:
    """Return a phrase about how a process ended.

    `code` is its exit code, or the negative number of the signal that ended it.

    >>> how_it_ended(7), how_it_ended(-9), how_it_ended(-40)
    ('ended with exit code 7', 'was ended by signal 9 (SIGKILL)', 'was ended by signal 40')
    """
    if code is None:
        return "ended, for an unknown reason,"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a signal without a name, such as the real-time signals
        return f"was ended by signal {-code}"
