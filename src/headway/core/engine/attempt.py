"""One attempt at a record, in the form in which the engine keeps it.

Invariants: an `Attempt` runs once, and a retry is another `Attempt` for the same record. A report names its object, so
a late report about an earlier attempt is recognised and ignored. An attempt is running from `take` until it is
reported. `attempt_states.py` has the states of an attempt.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from headway.core.engine.attempt_states import AttemptState
from headway.core.retry import GiveUp
from headway.core.user_errors import without_frames
from headway.records.record_types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from headway.core.engine.assignment import Assignment
    from headway.core.retry import Later, Move

R = TypeVar("R")

_NEVER = math.inf
_READY, _BEHIND = AttemptState.READY, AttemptState.BEHIND


class FailedAttempts(NamedTuple):
    """The failed attempts at a record so far.

    `error` is the error of the last failed attempt, and `at` is its time. `first_error` and `first_at` belong to the
    first failed attempt. `attempts` is the number of failed attempts; `untried` of them ended before anything was
    tried.
    """

    error: "BaseException"  # noqa: UP037 - the quotes let mypyc compile this field
    at: float
    first_at: float
    attempts: int
    untried: int
    first_error: "BaseException"  # noqa: UP037


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

    The verdict decides where the record is stored instead. If the verdict is None, the record is dropped. A `Move` can
    come before the first attempt; `error` then says who moves the record.
    """

    error: "BaseException"  # noqa: UP037 - the quotes let mypyc compile this field
    verdict: GiveUp | Later | Move | None


class Attempt(Generic[R]):
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

    # Only a `TenantAttempt` has these attributes, except that a process that runs handlers also sets `started`.
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
        self.next: Attempt[R] | None = None  # the attempt at the next record in the lane
        self.not_before = 0.0  # the time before which this attempt must not start
        self.not_after = _NEVER  # the time when the record expires; no handler is started after this time
        self.state = _READY  # stays unchanged when the partition is revoked; see `attempt_states.py`
        self.failure: FailedAttempts | None = None
        self.batch: AttemptBatch[R] | None = None
        # set while the record is being stored elsewhere: as a dead letter, as a schedule, or in another topic
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
    def number(self) -> int:
        """The number of this attempt, counted from 1."""
        return 1 if self.failure is None else self.failure.attempts + 1

    @property
    def is_kept(self) -> bool:
        """True if the record has failed for good, and is kept in its place until it is released or expires."""
        outcome = self.outcome
        return outcome is not None and isinstance(outcome.verdict, GiveUp) and self.not_before >= self.not_after

    @property
    def untried(self) -> int:
        """The number of earlier attempts that do not count, because they ended before anything was tried."""
        return 0 if self.failure is None else self.failure.untried

    def again(self, not_before: float, error: BaseException | None, now: float, untried: bool = False) -> Attempt[R]:
        """Return a new `Attempt` that takes the place of this one in its lane.

        If there is an error, this attempt has failed with it, and the new object is the next attempt. `untried` is True
        if this attempt failed before anything was tried. If there is no error, the new object repeats this attempt with
        the same number.
        """
        again = self._copy()
        if error is None:
            again.failure, again.outcome = self.failure, self.outcome
        else:
            error, before = without_frames(error), self.failure
            first_at, first_error = (before.first_at, before.first_error) if before else (now, error)
            again.failure = FailedAttempts(error, now, first_at, self.number, self.untried + untried, first_error)
        again.not_before, again.not_after = not_before, self.not_after
        again.state = _BEHIND  # until it becomes the head of its lane
        return again

    def take_over(self, newer: Attempt[R]) -> None:
        """Become an attempt at a newer record of the same lane, in this attempt's place in the queue."""
        self.record, self.offset, self.size = newer.record, newer.offset, newer.size
        self.not_after, self.failure, self.outcome = newer.not_after, newer.failure, None

    def _copy(self) -> Attempt[R]:
        return Attempt(self.record, self.offset, self.size, self.lane, self.assignment, self.arrived, self.order)

    def __repr__(self) -> str:
        return f"Attempt({self.partition!r}, offset={self.offset}, number={self.number}, epoch={self.epoch})"


class TenantAttempt(Attempt[R]):
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

    def _copy(self) -> Attempt[R]:
        return TenantAttempt(
            self.record, self.offset, self.size, self.lane, self.assignment, self.arrived, self.order, self.tenant
        )


class AttemptBatch(Generic[R]):
    """Attempts that run together in one slot. Their lane continues when all of them have been reported."""

    __slots__ = ("_again", "_running", "attempts")

    def __init__(self, attempts: Sequence[Attempt[R]]) -> None:
        self.attempts = attempts
        self._running = len(attempts)
        self._again: list[Attempt[R]] = []

    def leave(self) -> bool:
        """Record that one attempt has ended.

        Returns whether it was the last attempt of the batch to end, so that the slot is free.
        """
        self._running -= 1
        return not self._running

    def report(self, again: Sequence[Attempt[R]]) -> tuple[Attempt[R], Sequence[Attempt[R]]] | None:
        """Record that an attempt was reported.

        `again` has the next attempt at the record, or is empty if there is none.

        Returns None while other attempts of the batch are running. When all attempts have ended, returns the last
        attempt of the batch, and the next attempts in the order of the lane.
        """
        self._again += again
        if self._running:
            return None
        return self.attempts[-1], sorted(self._again, key=lambda attempt: attempt.order)
