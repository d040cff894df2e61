"""The ledger of processes that died, and the consequences for the records that ran in them.

Nothing shows which of its records ended a process. So all records that ran in it are suspects, and its death is a
failed attempt of each. A suspect runs alone the next time, so that the next death has only one possible cause.

Invariants: a death adds at least one attempt to each record that ran. A record becomes a dead letter only by a death
while it ran alone. So a record that always kills its process becomes a dead letter after `max_attempts` deaths, or
after `MOST_DEATHS` if there is no such bound. If other records ran beside it at first, that takes at least two deaths.
Those other records never become dead letters because of it.
"""

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from headway.core.engine.work import FailedAttempts
from headway.core.retry import Again, GiveUp, Retries, Verdict
from headway.errors import ProcessDiedError

MOST_DEATHS = 3
"""The number of deaths after which a record is a dead letter if there is no `max_attempts`."""

MOST_SUSPECTS = 10_000
"""The highest number of suspects to remember."""


class RecordId(NamedTuple):
    """The identity of a record. By the timestamp it differs from a record at the same offset of a recreated topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class RunningAttempt(NamedTuple):
    """A record that ran when its process died, the number of the attempt, and the number of untried attempts before."""

    record: RecordId
    attempt: int
    untried: int = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record that ran in processes that died.

    Args:
        record: The record's identity.
        attempts: The number of attempts it has had; the last one ended with its process.
        untried: The number of attempts that do not count.
        deaths: The number of processes that died while it ran.
        alone: True if nothing else ran in the last process that died.
        how: How that process ended, as returned by `how_it_ended`.
        first_at: The time of the first death, in seconds since the epoch.
        at: The time of the last death.
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
        """Return the failed attempts before the last. `wall_to_now` converts seconds since the epoch to the clock's."""
        if self.attempts <= 1:
            return None
        error, first_at = self.error(), self.first_at + wall_to_now
        return FailedAttempts(error, self.at + wall_to_now, first_at, self.attempts - 1, self.untried, error)


class Suspects:
    """The ledger of deaths, in a process that outlives the others. Beyond `most` records it forgets the oldest."""

    def __init__(self, most: int = MOST_SUSPECTS) -> None:
        self._most = most
        self._known: dict[RecordId, Suspect] = {}

    def died(self, running: Sequence[RunningAttempt], how: str, now: float) -> list[Suspect]:
        """Record that a process died while these records ran, and return them as suspects. `now` is the wall time."""
        return self.note(self._after_death(attempt, len(running) == 1, how, now) for attempt in running)

    def note(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """Add suspects from another ledger, and return those that are new here or have more attempts."""
        news = []
        for suspect in suspects:
            known = self._known.get(suspect.record)
            if known is None or known.attempts < suspect.attempts:
                self._known.pop(suspect.record, None)  # the newest are last
                self._known[suspect.record] = suspect
                news.append(suspect)
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return news

    def all(self) -> list[Suspect]:
        """Return all remembered suspects, the oldest first."""
        return list(self._known.values())

    def _after_death(self, attempt: RunningAttempt, alone: bool, how: str, now: float) -> Suspect:
        known = self._known.get(attempt.record)
        return Suspect(
            record=attempt.record,
            attempts=max(attempt.attempt, known.attempts + 1 if known else 1),
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
    """Decide what to do with a record after its process died; the arguments are those of `Retries.decide`."""
    verdict = retries.decide(record, attempt, error, now, random_number, untried)
    if not error.alone:  # this record may be innocent
        return Again(now) if isinstance(verdict, GiveUp) else verdict
    if isinstance(verdict, Again) and retries.max_attempts is None and error.deaths >= MOST_DEATHS:
        return GiveUp(f"{error.deaths} processes died of it")
    return verdict


def died(how: str, deaths: int, *, alone: bool) -> ProcessDiedError:
    """Return the error for a record whose process has died. `how` is the result of `how_it_ended`.

    >>> print(died(how_it_ended(-9), 2, alone=True))
    The process of the handler was ended by signal 9 (SIGKILL) while it was at this record.
    >>> print(died(how_it_ended(-9), 1, alone=False))
    The process of the handler was ended by signal 9 (SIGKILL) while it was at this record and others.
    """
    others = "" if alone else " and others"
    sentence = f"The process of the handler {how} while it was at this record{others}."
    return ProcessDiedError(sentence, deaths=deaths, alone=alone)


def deaths_of(failure: FailedAttempts | None) -> int:
    """Return how many processes in a row have died of a record with these failures."""
    death = as_death(failure.error) if failure else None
    return death.deaths if death else 0


def is_suspect(failure: FailedAttempts | None) -> bool:
    """Return whether a record's last attempt ended with a process in which others ran, so that it must run alone."""
    death = as_death(failure.error) if failure else None
    return death is not None and not death.alone


def as_death(error: BaseException | None) -> ProcessDiedError | None:
    """Return the error if it is a `ProcessDiedError`, or None."""
    # Check the type: `isinstance` reads `__class__`, and an exception of the user's can define that in any way.
    return cast(ProcessDiedError, error) if issubclass(type(error), ProcessDiedError) else None


def how_it_ended(code: int | None) -> str:
    """Return how a process ended, from its exit code, or from minus the signal that ended it.

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
