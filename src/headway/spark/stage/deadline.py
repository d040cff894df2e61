"""The deadline of a task: what is not done by then comes again later, and the task ends.

So one slow call does not hold up a micro-batch. An attempt that would begin after the deadline is not waited for
either: its row is put out as soon as that is known, so that the task may end before its deadline.
"""

import math
import time
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from headway.core.retry import Again, Later, Retries, Verdict


class Deadline:
    """The moment at which a task's calls end; without `seconds` there is none.

    It counts from the first rows: a task that waits until they are read has lost nothing of its time.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.at = math.inf  # by the monotonic clock

    def begin(self) -> None:
        """Let the time run, if it does not run yet."""
        if self.at == math.inf:
            self.at = time.monotonic() + self.seconds

    def is_over(self, by: float = 0.0) -> bool:
        """Return whether nothing may begin any more, for so many seconds already."""
        return time.monotonic() >= self.at + by


class Returned(NamedTuple):
    """The rows of a key that come again: the first of them, its time, and that of the last."""

    offset: int
    first_at: float
    last_at: float


class Due(NamedTuple):
    """The time of an attempt after the deadline, by the monotonic clock; as the delay of a verdict `Later`.

    `untried` is as in the verdict `Again`.
    """

    at: float
    untried: bool


@dataclass(frozen=True, slots=True)
class RetriesUntil(Retries):
    """Retries of which those after a deadline are not waited for: their verdict is `Later`.

    `given` are the user's own, which decide all else: their class may be one that they made of `Retries`.
    """

    given: Retries = field(default_factory=Retries)
    until: Deadline = field(default_factory=lambda: Deadline(None))

    def decide(
        self, record: object, attempt: int, error: BaseException, now: float, chance: float, untried: int = 0
    ) -> Verdict:
        """Return what to do after an attempt failed."""
        verdict = self.given.decide(record, attempt, error, now, chance, untried)
        if isinstance(verdict, Again) and max(verdict.at, now) >= self.until.at:
            return Later(Due(verdict.at, verdict.untried))
        return verdict


def retries_until(retries: Retries, until: Deadline) -> RetriesUntil:
    """Return the same retries with this end."""
    same = {each.name: getattr(retries, each.name) for each in fields(Retries)}
    return RetriesUntil(**same, given=retries, until=until)
