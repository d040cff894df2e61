"""The deadline of a task: what is not done by then comes again later, and the task ends.

So one slow call does not hold up a micro-batch. An attempt that would begin after the deadline is not waited for
either: its row is put out as soon as that is known, so that the task may end before its deadline.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

from headway.core.retry import Again, Later, Retries, Verdict


class Due(NamedTuple):
    """The time of an attempt after the deadline, by the monotonic clock; as the delay of a verdict `Later`.

    `untried` is as in the verdict `Again`.
    """

    at: float
    untried: bool


@dataclass(frozen=True, slots=True)
class RetriesUntil(Retries):
    """Retries of which those after a moment, by the monotonic clock, are not waited for: their verdict is `Later`."""

    until: float = 0.0

    def decide(
        self, record: object, attempt: int, error: BaseException, now: float, chance: float, untried: int = 0
    ) -> Verdict:
        """Return what to do after an attempt failed."""
        verdict = Retries.decide(self, record, attempt, error, now, chance, untried)
        if isinstance(verdict, Again) and (verdict.at >= self.until or now >= self.until):
            return Later(Due(verdict.at, verdict.untried))
        return verdict


def retries_until(retries: Retries, until: float) -> RetriesUntil:
    """Return the same retries with this end."""
    return RetriesUntil(**{field.name: getattr(retries, field.name) for field in fields(retries)}, until=until)
