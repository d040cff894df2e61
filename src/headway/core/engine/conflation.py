"""Conflation: of the waiting records of a key, only the newest is handled.

Invariants: at most one record of a lane with a key waits, besides records that are about to be stored as a dead
letter or as a schedule. The waiting record is the newest one that was received. A running record is never skipped. A
skipped record is done, so the next commit includes it. A record that waits keeps its place in the queue when a newer
one replaces it: otherwise a key that is written often would move to the end of the queue again and again.
"""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt, Brought
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.lanes import ALONE
from headway.core.engine.memory_budget import MemoryBudget

_READY, _BEHIND, _WAITING = AttemptState.READY, AttemptState.BEHIND, AttemptState.WAITING

R = TypeVar("R")


class Conflation(Generic[R]):
    """Skips waiting records for which a newer record of their key has arrived, and counts them by level."""

    def __init__(self, budgets: Sequence[MemoryBudget]) -> None:
        self._budgets = budgets
        self.skipped = [0] * len(budgets)

    def merge(
        self, assignment: Assignment[R], attempts: Sequence[Attempt[R]], brought: Mapping[R, Brought]
    ) -> tuple[list[Attempt[R]], list[Attempt[R]]]:
        """Let received records take the place of waiting records of their keys.

        Returns the attempts that must be appended to their lanes, and the waiting attempts that have got a newer
        record.
        """
        to_append: list[Attempt[R]] = []
        renewed: list[Attempt[R]] = []
        last_of: dict[object, Attempt[R]] = {}
        for attempt in attempts:
            lane = attempt.lane
            last = last_of.get(lane) or assignment.lanes.last(lane) if has_key(attempt) else None
            if last is not None and _comes_back(attempt, brought):
                self.skip(attempt)
            elif last is not None and _can_be_skipped(last):
                self.skip(last)
                last.take_over(attempt)
                renewed.append(last)
            else:
                to_append.append(attempt)
                last_of[lane] = attempt
        return to_append, renewed

    def skip(self, attempt: Attempt[R]) -> None:
        """Mark the record of an attempt as done because of a newer one."""
        assignment = attempt.assignment
        assignment.finish(attempt, (), 0)
        self._budgets[assignment.level].used -= attempt.size
        self.skipped[assignment.level] += 1

    def replaces(self, attempt: Attempt[R]) -> bool:
        """Return whether a newer record waits behind a record that was running and would now wait again."""
        return attempt.next is not None and has_key(attempt) and attempt.outcome is None


def has_key(attempt: Attempt[R]) -> bool:
    """Return whether a record has a key. Records without a key replace no other records, even if they share a lane."""
    return attempt.lane is not ALONE and attempt.lane is not None


def _can_be_skipped(attempt: Attempt[R]) -> bool:
    return (attempt.outcome is None or attempt.is_kept) and attempt.state in (_READY, _BEHIND, _WAITING)


def _comes_back(attempt: Attempt[R], brought: Mapping[R, Brought]) -> bool:
    """Return whether a record was stored again by a `RetryLater`.

    Such a record is older than the records of its key that were written in the meantime, although it is behind them in
    the log.
    """
    along = brought.get(attempt.record)
    return along is not None and along.failure is not None
