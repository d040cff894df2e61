"""A work: one attempt at a record.

Invariants: a work runs once, and a retry is another work for the same record. So a late report about an earlier attempt
is recognised by its work, and ignored. A work is running from `take` until it is reported. `work_states.py` has its
states.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from headway.core.engine.work_states import WorkState
from headway.core.user_errors import without_frames
from headway.records.record_types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from headway.core.engine.assignment import Assignment
    from headway.core.retry import GiveUp, Later

R = TypeVar("R")

_NEVER = math.inf
_READY, _BEHIND = WorkState.READY, WorkState.BEHIND


class FailedAttempts(NamedTuple):
    """The failed attempts so far: the last error with its time, the first error with its time, and their number.

    `untried` is the number of attempts that ended before anything was tried.
    """

    error: BaseException
    at: float
    first_at: float
    attempts: int
    untried: int
    first_error: BaseException


class Brought(NamedTuple):
    """The data from a record's headers: the attempts that failed elsewhere, and when the record expires.

    `bytes` is the size of the headers.
    """

    failure: FailedAttempts | None = None
    not_after: float = math.inf
    bytes: int = 0


NOTHING_BROUGHT: Mapping[Any, Brought] = {}


class FinalOutcome(NamedTuple):
    """The error of a last attempt, and the verdict by which its record is stored elsewhere, or None to drop it."""

    error: BaseException
    verdict: GiveUp | Later | None


class Work(Generic[R]):
    """A record with the data for its handler's context, and its place in its lane."""

    __slots__ = (
        "arrived",
        "assignment",
        "batch",
        "charged",
        "failure",
        "lane",
        "next",
        "not_after",
        "not_before",
        "offset",
        "order",
        "outcome",
        "record",
        "size",
        "started",
        "state",
        "tenant",
    )

    # Only a `TenantWork` has these. A process that runs handlers also sets `started`.
    tenant: str
    started: float  # when its handler began, if known
    charged: float  # the seconds that its tenant was charged when it started

    def __init__(
        self,
        record: R,
        offset: int,
        size: int,
        lane: Hashable,
        assignment: Assignment[R],
        arrived: float,
        order: int,
    ) -> None:
        self.record = record
        self.offset = offset
        self.size = size
        self.lane = lane
        self.assignment = assignment
        self.arrived = arrived
        self.order = order  # the order of arrival, over all partitions
        self.next: Work[R] | None = None  # the work behind this one in its lane
        self.not_before = 0.0
        self.not_after = _NEVER  # when its record expires; it is not started after that
        self.state = _READY  # not changed when its partition is revoked: see `work_states.py`
        self.failure: FailedAttempts | None = None
        self.batch: WorkBatch[R] | None = None
        self.outcome: FinalOutcome | None = None  # set while the result of a final failure is being stored

    @property
    def partition(self) -> TopicPartition:
        """The partition of the record."""
        return self.assignment.partition

    @property
    def level(self) -> int:
        """The record's level, 0 the lowest."""
        return self.assignment.partition.level

    @property
    def epoch(self) -> int:
        """The assignment under which the record was received."""
        return self.assignment.epoch

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return 1 if self.failure is None else self.failure.attempts + 1

    @property
    def untried(self) -> int:
        """The number of attempts before this one that do not count."""
        return 0 if self.failure is None else self.failure.untried

    def again(self, not_before: float, error: BaseException | None, now: float, untried: bool = False) -> Work[R]:
        """Return the next attempt after this one failed, or if there is no error the same attempt again.

        An `untried` attempt failed before anything was tried. The returned work takes this one's place in the lane.
        """
        again = self._copy()
        if error is None:
            again.failure, again.outcome = self.failure, self.outcome
        else:
            error, before = without_frames(error), self.failure
            first_at, first_error = (before.first_at, before.first_error) if before else (now, error)
            again.failure = FailedAttempts(error, now, first_at, self.attempt, self.untried + untried, first_error)
        again.not_before, again.not_after = not_before, self.not_after
        again.state = _BEHIND  # until its lane puts it first
        return again

    def _copy(self) -> Work[R]:
        return Work(self.record, self.offset, self.size, self.lane, self.assignment, self.arrived, self.order)

    def __repr__(self) -> str:
        return f"Work({self.partition!r}, offset={self.offset}, attempt={self.attempt}, epoch={self.epoch})"


class TenantWork(Work[R]):
    """A work whose handler time is charged to a tenant."""

    __slots__ = ()

    def __init__(
        self,
        record: R,
        offset: int,
        size: int,
        lane: Hashable,
        assignment: Assignment[R],
        arrived: float,
        order: int,
        tenant: str,
    ) -> None:
        super().__init__(record, offset, size, lane, assignment, arrived, order)
        self.tenant = tenant

    def _copy(self) -> Work[R]:
        return TenantWork(
            self.record, self.offset, self.size, self.lane, self.assignment, self.arrived, self.order, self.tenant
        )


class WorkBatch(Generic[R]):
    """Works that run together in one slot. Their lane continues when all of them were reported."""

    __slots__ = ("_again", "_running", "works")

    def __init__(self, works: Sequence[Work[R]]) -> None:
        self.works = works
        self._running = len(works)
        self._again: list[Work[R]] = []

    def leave(self) -> bool:
        """Record that one work has ended. Returns whether it was the last one, so that the slot is free."""
        self._running -= 1
        return not self._running

    def report(self, again: Sequence[Work[R]]) -> tuple[Work[R], Sequence[Work[R]]] | None:
        """Record that one work was reported, with its next attempt if there is one.

        Returns None while other works run, and then the last work of the batch and the next attempts, in order.
        """
        self._again += again
        if self._running:
            return None
        return self.works[-1], sorted(self._again, key=lambda work: work.order)
