"""A work: one attempt at a record.

Invariants: a work is tried once. A retry is another work for the same record. So a late report of an earlier attempt is
known by its work, and ignored. A work is running from `take` until it is reported; its states are in `work_states.py`.
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
    from headway.core.retry import DeadLetter, Later

R = TypeVar("R")

_NEVER = math.inf
_READY, _BEHIND = WorkState.READY, WorkState.BEHIND


class FailedAttempts(NamedTuple):
    """The failed attempts so far: the last error and its time, the first and its time, and their number.

    `untried` is the number of attempts that ended before anything was tried.
    """

    error: BaseException
    at: float
    first_at: float
    attempts: int
    untried: int
    first_error: BaseException


class Brought(NamedTuple):
    """The parts of a work that its record's headers bring along, and the bytes that these headers take.

    They tell of attempts that failed elsewhere, and of when the record expires.
    """

    failure: FailedAttempts | None = None
    not_after: float = math.inf
    bytes: int = 0


NOTHING_BROUGHT: Mapping[Any, Brought] = {}


class FinalOutcome(NamedTuple):
    """An attempt's error, and the verdict by which its record is stored elsewhere; None if the record is dropped."""

    error: BaseException
    verdict: DeadLetter | Later | None


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

    # Only a `TenantWork` has these; a process of handlers sets `started`, too.
    tenant: str
    started: float  # when its handler began, as far as that is known
    charged: float  # seconds, when it started

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
        self.not_after = _NEVER  # its record expires then, and is not started any more
        self.state = _READY  # the end of its partition changes what it means, and not this: see `work_states.py`
        self.failure: FailedAttempts | None = None
        self.batch: WorkBatch[R] | None = None
        self.outcome: FinalOutcome | None = None  # set while a final failure of this attempt is not stored yet

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
        """Return the next attempt after this one failed, or without an error the same attempt.

        An `untried` attempt failed before anything was tried. The lane puts the returned work in its place.
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
    """Works that run together in one slot; their lane goes on when the last of them was reported."""

    __slots__ = ("_again", "_running", "works")

    def __init__(self, works: Sequence[Work[R]]) -> None:
        self.works = works
        self._running = len(works)
        self._again: list[Work[R]] = []

    def leave(self) -> bool:
        """Note that one work no longer runs; return whether it was the last, which frees the slot."""
        self._running -= 1
        return not self._running

    def report(self, again: Sequence[Work[R]]) -> tuple[Work[R], Sequence[Work[R]]] | None:
        """Note that one work of a lane was reported.

        Return None while others run, then the last work and the works to try again, in order.
        """
        self._again += again
        if self._running:
            return None
        return self.works[-1], sorted(self._again, key=lambda work: work.order)
