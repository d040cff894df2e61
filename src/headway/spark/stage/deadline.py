"""The deadline of a task: the task ends at that time, and its rows that are not done come back later.

So one slow call does not hold up a micro-batch. The task does not wait either for a retry that would begin after the
deadline: it puts its row out as soon as that is known, and can end before its deadline.
"""

import math
import time
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from headway.core.retry import Again, Later, Retries, Verdict


class Deadline:
    """The moment at which a task's calls end; never if `seconds` is None.

    It counts from the first rows, so that waiting for them takes none of the task's time.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.at = math.inf  # time of the monotonic clock

    def begin(self) -> None:
        """Start the clock, unless it runs already."""
        if self.at == math.inf:
            self.at = time.monotonic() + self.seconds

    def is_over(self, by: float = 0.0) -> bool:
        """Return whether the deadline passed at least `by` seconds ago, so that nothing may begin any more."""
        return time.monotonic() >= self.at + by


class Returned(NamedTuple):
    """The rows of a key that come back later: the offset of the first, its time, and the time of the last."""

    offset: int
    first_at: float
    last_at: float


class Due(NamedTuple):
    """The time of a retry that falls after the deadline, by the monotonic clock; it is the delay of a verdict `Later`.

    `untried` is the same as in the verdict `Again`.
    """

    at: float
    untried: bool


@dataclass(frozen=True, slots=True)
class RetriesUntil(Retries):
    """Retries that do not wait for attempts after a deadline: the verdict for these is `Later`.

    All else is decided by `given`, the user's own retries, which may be an instance of a user's subclass.
    """

    given: Retries = field(default_factory=Retries)
    until: Deadline = field(default_factory=lambda: Deadline(None))

    def decide(
        self, record: object, attempt: int, error: BaseException, now: float, random_number: float, untried: int = 0
    ) -> Verdict:
        """Decide what to do after an attempt has failed."""
        verdict = self.given.decide(record, attempt, error, now, random_number, untried)
        if isinstance(verdict, Again) and max(verdict.at, now) >= self.until.at:
            return Later(Due(verdict.at, verdict.untried))
        return verdict


def retries_until(retries: Retries, until: Deadline) -> RetriesUntil:
    """Return these retries with a deadline, beyond which no row waits for its next attempt."""
    same = {each.name: getattr(retries, each.name) for each in fields(Retries)}
    return RetriesUntil(**same, given=retries, until=until)
