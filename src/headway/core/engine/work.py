"""One attempt at a record, in the form in which the engine keeps it. In the code, an attempt is called a work.

Invariants: a `Work` runs once, and a retry is another `Work` for the same record. A report names its `Work`, so a late
report about an earlier attempt is recognised and ignored. An attempt is running from `take` until it is reported.
`work_states.py` has the states of an attempt.
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
    """The failed attempts at a record so far.

    `error` is the error of the last failed attempt, and `at` is its time. `first_error` and `first_at` belong to the
    first failed attempt. `attempts` is the number of failed attempts; `untried` of them ended before anything was
    tried.
    """

    error: BaseException
    at: float
    first_at: float
    attempts: int
    untried: int
    first_error: BaseException


class Brought(NamedTuple):
    """The data from a record's headers: the attempts that had failed when they were written, and the expiry time.

    `bytes` is how much memory this data takes.
    """

    failure: FailedAttempts | None = None
    not_after: float = math.inf
    bytes: int = 0


NOTHING_BROUGHT: Mapping[Any, Brought] = {}


class FinalOutcome(NamedTuple):
    """The error of a record's last attempt, and the verdict on that attempt.

    The verdict decides where the record is stored instead. If the verdict is None, the record is dropped.
    """

    error: BaseException
    verdict: GiveUp | Later | None


class Work(Generic[R]):
    """One attempt at a record, with the data for the handler's context, and its place in its lane."""

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

    # Only a `TenantWork` has these attributes, except that a process that runs handlers also sets `started`.
    tenant: str
    started: float  # the time at which the handler was started
    charged: float  # the seconds that the tenant was charged when the attempt started

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
        self.order = order  # the record's number in the order of arrival over all partitions
        self.next: Work[R] | None = None  # the attempt at the next record in the lane
        self.not_before = 0.0  # the time before which this attempt must not start
        self.not_after = _NEVER  # the time when the record expires; no handler is started after this time
        self.state = _READY  # stays unchanged when the partition is revoked; see `work_states.py`
        self.failure: FailedAttempts | None = None
        self.batch: WorkBatch[R] | None = None
        # set while a dead letter or a schedule for the failed record is being stored
        self.outcome: FinalOutcome | None = None

    @property
    def partition(self) -> TopicPartition:
        """The partition of the record."""
        return self.assignment.partition

    @property
    def level(self) -> int:
        """The level of the record. 0 is the lowest level."""
        return self.assignment.partition.level

    @property
    def epoch(self) -> int:
        """The epoch of the assignment in which the record was received."""
        return self.assignment.epoch

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return 1 if self.failure is None else self.failure.attempts + 1

    @property
    def untried(self) -> int:
        """The number of earlier attempts that do not count, because they ended before anything was tried."""
        return 0 if self.failure is None else self.failure.untried

    def again(self, not_before: float, error: BaseException | None, now: float, untried: bool = False) -> Work[R]:
        """Return a new `Work` that takes the place of this attempt in its lane.

        If there is an error, this attempt has failed with it, and the new `Work` is the next attempt. `untried` is True
        if this attempt failed before anything was tried. If there is no error, the new `Work` repeats this attempt with
        the same number.
        """
        again = self._copy()
        if error is None:
            again.failure, again.outcome = self.failure, self.outcome
        else:
            error, before = without_frames(error), self.failure
            first_at, first_error = (before.first_at, before.first_error) if before else (now, error)
            again.failure = FailedAttempts(error, now, first_at, self.attempt, self.untried + untried, first_error)
        again.not_before, again.not_after = not_before, self.not_after
        again.state = _BEHIND  # until it becomes the head of its lane
        return again

    def _copy(self) -> Work[R]:
        return Work(self.record, self.offset, self.size, self.lane, self.assignment, self.arrived, self.order)

    def __repr__(self) -> str:
        return f"Work({self.partition!r}, offset={self.offset}, attempt={self.attempt}, epoch={self.epoch})"


class TenantWork(Work[R]):
    """An attempt whose handler time is charged to a tenant."""

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
    """Attempts that run together in one slot. Their lane continues when all of them have been reported."""

    __slots__ = ("_again", "_running", "works")

    def __init__(self, works: Sequence[Work[R]]) -> None:
        self.works = works
        self._running = len(works)
        self._again: list[Work[R]] = []

    def leave(self) -> bool:
        """Record that one attempt has ended.

        Returns whether it was the last attempt of the batch to end, so that the slot is free.
        """
        self._running -= 1
        return not self._running

    def report(self, again: Sequence[Work[R]]) -> tuple[Work[R], Sequence[Work[R]]] | None:
        """Record that an attempt was reported.

        `again` has the next attempt at the record, or is empty if there is none.

        Returns None while other attempts of the batch are running. When all attempts have ended, returns the last
        attempt of the batch, and the next attempts in the order of the lane.
        """
        self._again += again
        if self._running:
            return None
        return self.works[-1], sorted(self._again, key=lambda work: work.order)
