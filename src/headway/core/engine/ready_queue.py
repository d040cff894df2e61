"""The ready records of one level, and the slots that the level's running attempts take.

A record is *fresh* if no attempt at it has failed, and *failed* otherwise.

Invariants: topics and partitions take turns, separately for fresh records and for failed records. Failed records go
first, because they are older; `NextSlots` holds them back while they already use their share of the slots. With
tenants, tenants take turns, and within a tenant failed records go first. `ready` is the number of attempts that `take`
can still return.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt, AttemptBatch
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.lanes import ALONE
from headway.core.engine.suspects import is_suspect
from headway.core.engine.tenant_turns import TenantTurns
from headway.core.engine.tenants import Tenants
from headway.core.engine.turns import PartitionTurns, RankedTurns

R = TypeVar("R")

_READY, _RUNNING = AttemptState.READY, AttemptState.RUNNING


class ReadyQueue(Generic[R]):
    """The lane heads of one level that are ready to run, in the order in which they should start.

    Topics and partitions take turns. Tenants or ranks also affect the order if they are in use.
    """

    __slots__ = ("_retried", "failed", "fresh", "slots", "tenants")

    def __init__(self, tenants: Tenants | None = None, rank_of: Callable[[R], float] | None = None) -> None:
        self.tenants = tenants
        self.fresh = _fresh_turns(tenants, rank_of)
        # Records that failed before and whose retry is due. The record that failed longest ago goes first. If the
        # lowest offset went first, a record that always fails could take the only slot for failed records each time.
        self.failed = _failed_turns(tenants, rank_of)
        self.slots = 0  # the number of taken slots; a stale attempt also holds its slot until it is reported
        # The running attempts at records that had failed before; a batch is represented by its first attempt. This
        # cannot be read from `failure`, which can also be set while an attempt runs.
        self._retried: set[Attempt[R]] = set()

    @property
    def retrying(self) -> int:
        """The number of slots that are taken by records which failed before."""
        return len(self._retried)

    @property
    def ready(self) -> int:
        """The number of records that are ready to run."""
        return self.fresh.ready + self.failed.ready

    @property
    def buffered(self) -> int:
        """The number of ready records that count towards the buffer.

        If there are tenants, the number is 0, so that fetching continues: the next turn may belong to a tenant whose
        records are not fetched yet.
        """
        return 0 if self.tenants else self.fresh.ready

    def without_ready(self) -> "ReadyQueue[R]":
        """Return a copy without ready records, which the policy sees while the level must not start attempts."""
        seen: ReadyQueue[R] = ReadyQueue()
        seen.slots = self.slots
        return seen

    def without_failed(self) -> "ReadyQueue[R]":
        """Return a copy without failed records, which the policy sees while failed records must not start."""
        seen = self.without_ready()
        seen.fresh = self.fresh
        return seen

    def arrive(self, attempts: list[Attempt[R]]) -> None:
        """Add records of one partition that are ready on arrival, behind all earlier records of the partition."""
        self.fresh.arrive(attempts)

    def release(self, attempt: Attempt[R]) -> None:
        """Add a lane head that is ready to run."""
        attempt.state = _READY
        (self.failed if attempt.failure else self.fresh).release(attempt)

    def take(self, now: float, only_fresh: bool = False) -> Attempt[R]:
        """Start the first attempt in a slot of its own, and return it."""
        self.slots += 1
        if only_fresh or not self.failed.ready or (self.tenants and self._is_turn_of_fresh()):
            return self._start(self.fresh)
        attempt = self._start(self.failed)
        self._retried.add(attempt)
        return attempt

    def _is_turn_of_fresh(self) -> bool:
        return bool(self.fresh.ready) and self.fresh.first_time() < self.failed.first_time()  # type: ignore[union-attr]

    def take_fresh(self, limit: int, now: float) -> list[Attempt[R]]:
        """Start up to `limit` attempts at fresh records, each in a slot of its own, and return them."""
        attempts = self.fresh.take_many(limit)
        for attempt in attempts:
            attempt.state = _RUNNING
        self.slots += len(attempts)
        return attempts

    def take_batch(
        self, max_size: int, now: float, only_fresh: bool = False, of_one_partition: bool = False
    ) -> list[Attempt[R]]:
        """Start a batch, and return its attempts.

        The batch has the first record and the records behind it in its lane. If the first record has no lane, the batch
        also has the next records without a lane. A suspect runs alone.
        """
        attempts = [self.take(now, only_fresh)]
        if is_suspect(attempts[0].failure):
            max_size = 1
        if attempts[0].lane is ALONE:
            turns = self.failed if attempts[0].failure else self.fresh
            only_of = attempts[0].assignment if of_one_partition else None
            while len(attempts) < max_size and (following := turns.first(only_of)) and _joins(following):
                attempts.append(self._start(turns, only_of))
        else:
            while len(attempts) < max_size and (behind := attempts[-1].next) and _follows(behind, now):
                if self.tenants:  # charge the tenant here, because this record was never in the ready queue
                    behind.charged = self.tenants.start(self.tenants.join(behind.tenant, 1), in_turn=False)
                attempts.append(behind)
        batch = AttemptBatch(attempts)
        for attempt in attempts:
            attempt.batch, attempt.state = batch, _RUNNING
        return attempts

    def leave(self, attempt: Attempt[R], batch: AttemptBatch[R] | None, now: float) -> None:
        """Free the slot of an attempt that ended, or of its batch if this was the last attempt of the batch to end."""
        self.slots -= 1
        if self._retried:
            self._retried.discard(batch.attempts[0] if batch else attempt)

    def _start(self, turns: PartitionTurns[R] | TenantTurns[R], only_of: Assignment[R] | None = None) -> Attempt[R]:
        attempt = turns.take(only_of)
        attempt.state = _RUNNING
        return attempt

    def oldest(self) -> float | None:
        """Return when the oldest ready record arrived, or None if no record is ready."""
        fresh = self.fresh.oldest()
        failed = self.failed.oldest() if self.failed.ready else None
        if fresh is None or (failed is not None and failed.order < fresh.order):
            return None if failed is None else failed.arrived
        return fresh.arrived

    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        """Remove and return the ready attempts of an assignment."""
        return self.fresh.drop(assignment) + self.failed.drop(assignment)


class TenantQueue(ReadyQueue[R]):
    """A ready queue that charges tenants for the time of each attempt. The time of a batch is divided evenly."""

    __slots__ = ()

    def take(self, now: float, only_fresh: bool = False) -> Attempt[R]:
        """Start the first attempt in a slot of its own, and return it."""
        attempt = super().take(now, only_fresh)
        attempt.started = now
        return attempt

    def take_fresh(self, limit: int, now: float) -> list[Attempt[R]]:
        """Start up to `limit` attempts at fresh records, each in a slot of its own, and return them."""
        attempts = super().take_fresh(limit, now)
        for attempt in attempts:
            attempt.started = now
        return attempts

    def take_batch(
        self, max_size: int, now: float, only_fresh: bool = False, of_one_partition: bool = False
    ) -> list[Attempt[R]]:
        """Start a batch, and return its attempts."""
        attempts = super().take_batch(max_size, now, only_fresh, of_one_partition)
        for attempt in attempts:
            attempt.started = now
        return attempts

    def leave(self, attempt: Attempt[R], batch: AttemptBatch[R] | None, now: float) -> None:
        """Free the slot of an attempt that ended, or of its batch if this was the last attempt of the batch to end."""
        super().leave(attempt, batch, now)
        assert self.tenants is not None  # noqa: S101 - for the type checker
        attempts = batch.attempts if batch else (attempt,)
        for each in attempts:
            self.tenants.end(each.tenant, (now - each.started) / len(attempts), each.charged)


def _fresh_turns(tenants: Tenants | None, rank_of: Callable[[R], float] | None) -> PartitionTurns[R] | TenantTurns[R]:
    if tenants:
        return TenantTurns(tenants)
    return RankedTurns(lambda attempt: -rank_of(attempt.record)) if rank_of else PartitionTurns()


def _failed_turns(tenants: Tenants | None, rank_of: Callable[[R], float] | None) -> PartitionTurns[R] | TenantTurns[R]:
    if tenants:
        return TenantTurns(tenants, lambda: RankedTurns(_failed_at))
    return RankedTurns(
        lambda attempt: (-rank_of(attempt.record), _failed_at(attempt)) if rank_of else _failed_at(attempt)
    )


def _failed_at(attempt: Attempt[Any]) -> float:
    return 0.0 if attempt.failure is None else attempt.failure.at


def _joins(attempt: Attempt[Any]) -> bool:
    """Return whether an attempt may join a batch of records without a lane."""
    return attempt.lane is ALONE and not is_suspect(attempt.failure)


def _follows(attempt: Attempt[Any], now: float) -> bool:
    """Return whether an attempt may join the batch of the record before it in its lane."""
    return attempt.not_before <= now and not is_suspect(attempt.failure)
