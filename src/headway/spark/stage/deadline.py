"""The deadline of a task, at which the task ends. Rows that are not done by then are handled again later.

A deadline keeps one slow call from holding up a whole micro-batch. If the next attempt at a row would begin after the
deadline, the task returns the row at once. So a task can end even before its deadline.
"""

import math
import time
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from headway.core.retry import Again, Later, Retries, Verdict


class Deadline:
    """The time at which a task stops calling its handler. If `seconds` is None, there is no deadline.

    The seconds count from the task's first rows, so that waiting for rows does not use up the task's time.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.at = math.inf  # by the monotonic clock; set when the first rows arrive

    def begin(self) -> None:
        """Set the time of the deadline, unless it is already set."""
        if self.at == math.inf:
            self.at = time.monotonic() + self.seconds

    def is_over(self, by: float = 0.0) -> bool:
        """Return whether the deadline passed at least `by` seconds ago. Calls must not begin after the deadline."""
        return time.monotonic() >= self.at + by


class Returned(NamedTuple):
    """The rows of a key that are handled again later.

    `offset` is the offset of the first of these rows, `first_at` the time at which it is due, and `last_at` the time at
    which the last one is due.
    """

    offset: int
    first_at: float
    last_at: float


class Due(NamedTuple):
    """The time of a retry that would begin after the deadline, used in place of the delay in a verdict `Later`.

    `at` is a time of the monotonic clock, and `untried` has the same meaning as in the verdict `Again`.
    """

    at: float
    untried: bool


@dataclass(frozen=True, slots=True)
class RetriesUntil(Retries):
    """Retries with a deadline: if the next attempt would begin after the deadline, the verdict is `Later`.

    All other decisions are left to `given`, the user's `Retries`, which can be an instance of a subclass.
    """

    given: Retries = field(default_factory=Retries)
    until: Deadline = field(default_factory=lambda: Deadline(None))

    def decide(
        self, record: object, attempt: int, error: BaseException, now: float, random_number: float, untried: int = 0
    ) -> Verdict:
        """Return the user's verdict on a failed attempt, or `Later` if the next attempt would be after the deadline."""
        verdict = self.given.decide(record, attempt, error, now, random_number, untried)
        if isinstance(verdict, Again) and max(verdict.at, now) >= self.until.at:
            return Later(Due(verdict.at, verdict.untried))
        return verdict


def retries_until(retries: Retries, until: Deadline) -> RetriesUntil:
    """Add a deadline to the user's retries. A row does not wait for an attempt that would begin after the deadline."""
    same = {each.name: getattr(retries, each.name) for each in fields(Retries)}
    return RetriesUntil(**same, given=retries, until=until)
