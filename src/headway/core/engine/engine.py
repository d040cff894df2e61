"""The engine receives records and the outcomes of attempts, and returns the attempts to run and the commits to make.

The engine is a state machine without a clock. Time is an argument, effects are return values, and `next_wake` returns
when the driver must call again. The driver fetches as many records as `demand` returns, but none from the partitions in
`paused`. The driver runs the attempts that `take` returns, reports the end of each attempt, and commits what `tick`
returns.

Invariants:
- At most one attempt, or one batch, of each lane is running. The attempt is for the first record of the lane that is
  not done.
- A record that was received and is not done is in exactly one state: running, ready, behind another record in its lane,
  or waiting for its time.
- An assignment that has ended is never committed: a report about one of its attempts only frees that attempt's slot.
- A tick is a snapshot of one moment. For each partition, a tick has the offset, the offset map, and all outputs of the
  records that the offset and the map mark as done.
- The bytes held are those of the records that are not done, and of the uncommitted outputs with their records.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain, count, islice, pairwise, repeat
from math import inf
from operator import lt
from typing import Any, Generic, TypeVar

from headway.core.engine import commit_tick
from headway.core.engine.assignment import Assignment, PartitionProgress
from headway.core.engine.attempt import NOTHING_BROUGHT, Attempt, Brought, FinalOutcome, TenantAttempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.backpressure import Backpressure
from headway.core.engine.batching import Batching
from headway.core.engine.conflation import Conflation
from headway.core.engine.lanes import ALONE, Ordering
from headway.core.engine.next_slots import NextSlots, SlotCount
from headway.core.engine.open_lanes import OpenLanes
from headway.core.engine.partition_states import PartitionEvent, PartitionState
from headway.core.engine.rate_limits import Entrance, LimitedSlots, RateLimits
from headway.core.engine.ready_queue import ReadyQueue, TenantQueue
from headway.core.engine.slot_policies import FairSlots, SlotPolicy
from headway.core.engine.tenants import Tenants, Usage
from headway.core.engine.waiting_heads import WaitingHeads
from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, encode
from headway.core.offsets.trailer import NOTHING_TRIED, Tried
from headway.core.retry import Again, KeepInPlace, Verdict
from headway.core.user_errors import without_frames
from headway.records.record_types import TopicPartition

_LEAVING, _GONE = PartitionState.LEAVING, PartitionState.GONE
_RUNNING, _STALE, _DROPPED = AttemptState.RUNNING, AttemptState.STALE, AttemptState.DROPPED
_DONE, _REPLACED = AttemptState.DONE, AttemptState.REPLACED
_WAITING, _BEHIND = AttemptState.WAITING, AttemptState.BEHIND

R = TypeVar("R")


class Engine(Generic[R]):
    """The state machine that decides which records are handled when, and which progress may be committed.

    The engine is not thread-safe: its driver must call it from one thread at a time. Records must have an `offset` and,
    if each key has a lane, a `raw_key`. The functions passed to the engine must not raise.

    Args:
        ordering: Which records must run in order.
        slots: The policy by which the levels share the slots. The default policy is `fair`, and gives each level twice
            the share of the level below it.
        levels: The number of levels.
        buffer: The number of ready records to keep for each level, so that no slot waits for a fetch.
        most_bytes: The number of bytes that each level may hold.
        size_of: A function that returns how many bytes a record takes in memory.
        size_of_output: A function that returns how many bytes an output takes in memory.
        retry_share: The fraction of the slots that records which failed before get while other records wait.
        commits: True if offsets and maps are ever committed. If False, no partition is paused because of the size of
            its map.
        tenants: The weights of tenants, by name. If there are weights, each record is received with its tenant, and the
            tenants of a level take turns.
        tenant_rate: How many attempts may start per second for each tenant, or a function that returns this number for
            a tenant. This limit requires `tenants`. By default there is no limit.
        key_rate: How many attempts may start per second for each key. By default there is no limit.
        rank_of: A function that returns the rank of a record. Among the heads of a partition's lanes, the head with the
            highest rank runs first. By default, the head that arrived first runs first. Ranks cannot be combined with
            tenants.
        latest_only: True to skip waiting records for which a newer record of their key has arrived. This requires an
            ordering by key.
    """

    def __init__(
        self,
        ordering: Ordering = Ordering.KEY,
        *,
        levels: int = 1,
        slots: SlotPolicy | None = None,
        buffer: int = 1000,
        most_bytes: int = 64 * 2**20,
        size_of: Callable[[R], int] = lambda record: 1024,
        size_of_output: Callable[[Any], int] = lambda output: 1024,
        retry_share: float = 0.25,
        commits: bool = True,
        tenants: Mapping[str, float] | None = None,
        tenant_rate: float | Callable[[str], float | None] | None = None,
        key_rate: float | None = None,
        rank_of: Callable[[R], float] | None = None,
        latest_only: bool = False,
    ) -> None:
        self._ordering = ordering
        self._buffer = buffer
        self._size_of = size_of
        self._size_of_output = size_of_output
        self._commits = commits
        self._assignments: dict[TopicPartition, Assignment[R]] = {}
        self._usage = Usage()
        self._tenants = [Tenants(tenants, self._usage) for _ in range(levels)] if tenants is not None else []
        self._levels: list[ReadyQueue[R]] = [TenantQueue(each) for each in self._tenants]
        self._levels = self._levels or [ReadyQueue(rank_of=rank_of) for _ in range(levels)]
        self._backpressure = Backpressure(most_bytes, levels, commits)
        self._budgets = self._backpressure.budgets
        policy = slots or FairSlots([2**level for level in range(levels)])
        self.shares = policy.shares
        """The shares of the levels in the slots, lowest level first, or None if the policy has no shares."""
        full = self._backpressure.full_of_outputs
        self.limits: RateLimits[R] | None = None
        """The rate limits of tenants and keys, or None if there are no limits."""
        self._entrances: Sequence[Entrance[R]] = self._levels
        if tenant_rate is None and key_rate is None:
            self._next_slots = NextSlots(self._levels, policy, retry_share, full)
        else:
            self.limits = RateLimits(self._levels, tenant_rate, key_rate)
            self._entrances = self.limits.entrances
            self._next_slots = LimitedSlots(self.limits, self._levels, policy, retry_share, full)
        self._map_limit = MAX_CHARACTERS
        self._map_accepted = 0  # the size in characters of the largest map that Kafka has accepted
        self._orders = count()
        self._first_order = 0  # records that an operator puts first get lower numbers than all that have arrived
        self._waiting = WaitingHeads(self._entrances, self._orders)
        self._epochs = count(1)
        self._conflation: Conflation[R] | None = Conflation(self._budgets) if latest_only else None

    # Partitions

    def assign(
        self,
        partition: TopicPartition,
        committed: OffsetMap,
        moved: bool = False,
        log: bytes = b"",
        tried: Mapping[int, Tried] = NOTHING_TRIED,
    ) -> int:
        """Begin an assignment of a partition at its committed offset, and return the epoch of the new assignment.

        If `moved` is True, the offset has not been committed yet, and the next tick commits it. If the partition is
        already assigned, its assignment starts over at the new offset. `log` is the mark of the topic's id, which is
        part of each commit. `tried` has the failed attempts of earlier owners of the partition.
        """
        self.revoke([partition])
        assignment: Assignment[R] = Assignment(
            partition, committed, next(self._epochs), self._map_limit, log, tried if self._commits else NOTHING_TRIED
        )
        self._assignments[partition] = assignment
        # Kafka has accepted a map of this size from an earlier owner
        assignment.map_characters = len(encode(committed))
        self._map_accepted = max(self._map_accepted, assignment.map_characters)
        assignment.finished += moved
        self._backpressure.begin(assignment)
        return assignment.epoch

    def tried(self, partition: TopicPartition) -> Mapping[int, Tried]:
        """Return the failed attempts of a partition's records that are not done, by offset."""
        return assignment.all_tried() if (assignment := self._assignments.get(partition)) else NOTHING_TRIED

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """End the assignment of partitions. The partitions' running attempts become stale."""
        for partition in partitions:
            if assignment := self._assignments.pop(partition, None):
                self._drop(assignment)

    def retire(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop starting attempts on partitions that are about to be revoked.

        Running attempts can still be reported and committed.
        """
        for partition in partitions:
            if (assignment := self._assignments.get(partition)) and assignment.state is not _LEAVING:
                assignment.on(PartitionEvent.REVOKED)
                self._forget_waiting(assignment)
                assignment.held = None

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop starting attempts on these partitions until they are released. Running attempts continue."""
        for partition in partitions:
            assignment = self._assignments.get(partition)
            if assignment and assignment.held is None and assignment.state is not _LEAVING:
                assignment.held = self._forget_waiting(assignment)

    def release(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Let attempts on held partitions start again."""
        for partition in partitions:
            if (assignment := self._assignments.get(partition)) and assignment.held is not None:
                heads, assignment.held = assignment.held, None
                for head in sorted(heads, key=lambda head: head.order):
                    self._waiting.place(head, now)

    def held(self) -> set[TopicPartition]:
        """Return the partitions that are held."""
        return {partition for partition, each in self._assignments.items() if each.held is not None}

    def give_up(self, attempts: Iterable[Attempt[R]]) -> None:
        """Mark the given attempts as stale if they are running, so that their reports only free their slots."""
        for attempt in attempts:
            if attempt.state is _RUNNING:
                attempt.state = _STALE

    def _drop(self, assignment: Assignment[R]) -> None:
        assignment.end()
        self._forget_waiting(assignment)
        self._backpressure.end(assignment)

    def _forget_waiting(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        """Remove and return the lane heads of an assignment that wait for a slot or for a time."""
        return self._entrances[assignment.level].drop(assignment) + self._waiting.drop(assignment)

    def assigned(self) -> Collection[TopicPartition]:
        """Return the assigned partitions."""
        return self._assignments.keys()

    def state_of(self, partition: TopicPartition) -> PartitionState:
        """Return the state of a partition, assigned or not."""
        return assignment.state if (assignment := self._assignments.get(partition)) else _GONE

    # Receiving records

    def demand(self) -> list[int]:
        """Return how many records to fetch next for each level to fill its buffer of *ready* records.

        Records that wait behind others in their lane, or for their time, are not counted, because a level whose buffer
        is full of waiting records would run out of ready ones. The memory budget bounds the number of waiting records:
        it pauses partitions (see `paused`).
        """
        return self._backpressure.demand(self._levels, self._buffer)

    def paused(self) -> set[TopicPartition]:
        """Return the partitions from which nothing must be fetched now.

        A partition is paused when its share of the memory is full or its offset map is too large. Records that have
        already been fetched from a paused partition can still be received.
        """
        return self._backpressure.paused(self._assignments)

    def receive(
        self,
        partition: TopicPartition,
        records: Sequence[R],
        now: float,
        *,
        brought: Mapping[R, Brought] = NOTHING_BROUGHT,
        tenants: Sequence[str] = (),
        offsets: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Add fetched records of a partition, in the order of its log.

        A driver that computes `offsets` and `sizes` for many records at once can pass them. Otherwise the engine gets
        them from each record.

        `brought` has data from the headers of some records. If there are tenants, `tenants` has the tenant of each
        record. Records are ignored if their partition is not assigned or was retired. If the offsets go back because of
        a seek, or because the log was truncated, a new assignment of the partition begins.
        """
        if offsets is None:
            offsets = [record.offset for record in records]  # type: ignore[attr-defined]
        if sizes is None:
            sizes = list(map(self._size_of, records))
        start = 0
        for stop in _ascending_ends(offsets):
            assignment = self._assignments.get(partition)
            if assignment and assignment.state is not _LEAVING:
                run = slice(start, stop)
                self._receive(partition, records[run], offsets[run], sizes[run], now, brought, tenants[run])
            start = stop

    def _receive(
        self,
        partition: TopicPartition,
        records: Sequence[R],
        offsets: Sequence[int],
        sizes: Sequence[int],
        now: float,
        brought: Mapping[R, Brought],
        tenants: Sequence[str],
    ) -> None:
        if offsets[0] < self._assignments[partition].progress.end:
            # The log was truncated. Other records have these offsets now, so the failed attempts that were counted for
            # these offsets do not apply.
            is_held, log = self._assignments[partition].held is not None, self._assignments[partition].log
            self.assign(partition, OffsetMap(offsets[0]), log=log)
            if is_held:  # the user's pause still applies
                self.hold([partition])
        assignment = self._assignments[partition]
        fresh = assignment.progress.receive(offsets)
        if len(fresh) < len(offsets):
            is_fresh = set(fresh)
            records = [record for record, offset in zip(records, offsets, strict=True) if offset in is_fresh]
            tenants = [tenant for tenant, offset in zip(tenants, offsets, strict=False) if offset in is_fresh]
            sizes = [size for size, offset in zip(sizes, offsets, strict=True) if offset in is_fresh]
        if records:
            self._enqueue(assignment, records, fresh, sizes, now, brought, tenants)
            self._backpressure.pause_or_resume(assignment)

    def _enqueue(
        self,
        assignment: Assignment[R],
        records: Sequence[R],
        offsets: Sequence[int],
        sizes: Sequence[int],
        now: float,
        brought: Mapping[R, Brought],
        tenants: Sequence[str],
    ) -> None:
        lanes = self._ordering.lanes_of(records)
        attempts: list[Attempt[R]]
        if self._tenants:
            attempts = list(
                map(
                    TenantAttempt,
                    records,
                    offsets,
                    sizes,
                    lanes,
                    repeat(assignment),
                    repeat(now),
                    self._orders,
                    tenants,
                )
            )
        else:
            attempts = list(map(Attempt, records, offsets, sizes, lanes, repeat(assignment), repeat(now), self._orders))
        size = sum(sizes)
        if brought:
            for attempt in attempts:
                if along := brought.get(attempt.record):
                    attempt.failure, attempt.not_after, more = along
                    attempt.size += more
                    size += more
        assignment.bytes += size
        self._budgets[assignment.level].fill(size, len(sizes))
        has_failed = bool(assignment.earlier)
        if has_failed:
            assignment.recall(attempts, now)
        if self._conflation is not None:
            attempts, renewed = self._conflation.merge(assignment, attempts, brought)
            for attempt in renewed:
                self.unpark(attempt, now)  # a newer record does not wait until the older one would be retried
        if assignment.held is not None:
            assignment.held += assignment.lanes.extend(attempts)
            return
        if self._waiting.batching:
            self._waiting.take_in(assignment.lanes.extend(attempts), attempts, now)
            return
        if not brought and not has_failed:
            self._entrances[assignment.level].arrive(assignment.lanes.extend(attempts))
            return
        for head in assignment.lanes.extend(attempts):
            self._waiting.place(head, now)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Record the consumer's position, so that the position can be committed.

        No more records below the position will arrive. Without this call, transaction markers before the position would
        count as lag.
        """
        if (assignment := self._assignments.get(partition)) and position > assignment.progress.end:
            assignment.progress.advance(position)
            assignment.finished += 1

    # Starting attempts

    def let_batches_fill(self, size: int, linger: float, of_one_partition: bool = False) -> None:
        """Let records wait up to `linger` seconds for a batch of this size.

        This must be called before any record is received.
        """
        self._waiting.batching = Batching(size, linger, of_one_partition) if linger > 0 else None

    def let_no_batch_fill(self) -> None:
        """From now on, start batches that are not full without waiting. Call this when no more records will arrive."""
        self._waiting.stop_batching()

    def count_slots(self, slot_count: SlotCount) -> None:
        """Set the object that counts all slots, both taken and free.

        If none is set, the `limit` in each call of `take` must be the number of all free slots.
        """
        self._next_slots.slot_count = slot_count

    def take(self, limit: int, now: float) -> list[Attempt[R]]:
        """Start up to `limit` attempts, each on the level that the policy picks, and return them."""
        if self._waiting.entries:
            self._waiting.release_due(now)
        return self._next_slots.take(limit, now)

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Attempt[R]]:
        """Start a batch, and return its attempts. The list is empty if no record is ready.

        The records of a batch are the first of one lane, or records without a lane. The records without a lane are all
        from one level, and with `of_one_partition` from one partition. A lane continues when all attempts of its batch
        have been reported. The records that failed are then first in the lane again.
        """
        self._waiting.release_due(now)
        return self._next_slots.take_batch(max_size, now, of_one_partition)

    # Outcomes

    def finish(self, attempt: Attempt[R], now: float, outputs: Sequence[Any] = ()) -> bool:
        """Mark an attempt's record as done. The next tick commits its offset together with the `outputs`.

        If the record becomes a dead letter, the dead letter must be stored before this call. Returns True if the record
        was marked as done. Returns False, and only frees the slot, if the attempt is stale or was reported before, or
        if its partition is no longer assigned.
        """
        assignment = attempt.assignment
        if attempt.state is _RUNNING and assignment.state is not _GONE:
            size = sum(map(self._size_of_output, outputs)) if outputs else 0
            assignment.finish(attempt, outputs, size)
            if outputs:
                self._backpressure.take_outputs(assignment.level, size, size + attempt.size)
            else:
                self._budgets[assignment.level].used -= attempt.size
            self._leave_lane(attempt, (), now)
            return True
        return self._report_late(attempt, now)

    def finish_together(self, attempts: Sequence[Attempt[R]], now: float, outputs: Sequence[Any]) -> bool:
        """Mark the records of a batch of one partition as done, like `finish`.

        A tick contains either all offsets and outputs of the batch, or none of them.
        """
        assignment = attempts[0].assignment
        if attempts[0].state is not _RUNNING or assignment.state is _GONE:
            for attempt in attempts:
                self._report_late(attempt, now)
            return False
        size = sum(map(self._size_of_output, outputs))
        kept = assignment.finish_together(attempts, outputs, size)
        self._backpressure.take_outputs(assignment.level, size, kept)
        for attempt in attempts:
            self._leave_lane(attempt, (), now)
        return True

    def retry(
        self, attempt: Attempt[R], at: float, error: BaseException | None, now: float, untried: bool = False
    ) -> bool:
        """Put a record back at the head of its lane for its next attempt, which starts at the time `at` or later.

        If an error is given, this attempt counts as failed; otherwise it does not count. `untried` has the same meaning
        as in the verdict `Again`. If the engine skips records for newer ones, and a newer record of the key waits, this
        record is skipped instead. Returns False in the same cases as `finish`.
        """
        if attempt.state is _RUNNING and attempt.assignment.state is not _GONE:
            if self._skips_instead(attempt, now):
                return True
            again = attempt.again(at, error, now, untried)
            if error is not None and self._commits and again.failure:
                attempt.assignment.note_failure(attempt.offset, again.failure)
            self._leave_lane(attempt, (again,), now)
            return True
        return self._report_late(attempt, now)

    def park(
        self, attempt: Attempt[R], now: float, until: float = inf, *, lets_pass: bool = False
    ) -> Attempt[R] | None:
        """Make a record wait until a time, or until `unpark` is called. The attempt gives back its slot.

        With `lets_pass`, the record leaves its lane, so that later records of the lane do not wait for it. It stays in
        its lane nevertheless if a later record would replace it anyway. Returns the attempt that waits, or None if the
        record was skipped for a newer one, and in the cases in which `finish` returns False.
        """
        if attempt.state is not _RUNNING or attempt.assignment.state is _GONE:
            self._report_late(attempt, now)
            return None
        if self._skips_instead(attempt, now):
            return None
        parked = attempt.again(until, None, now)
        if lets_pass and attempt.lane is not ALONE and self._conflation is None:
            parked.lane = ALONE
            self._leave_lane(attempt, (), now)
            self._place(parked, now)
        else:
            self._leave_lane(attempt, (parked,), now)
        return parked

    def unpark(self, parked: Attempt[R], now: float) -> None:
        """Let a parked record start. Does nothing if it has started already, or if its partition was revoked."""
        assignment = parked.assignment
        is_parked = parked.not_before > now and parked.state in (_WAITING, _BEHIND)
        if not is_parked or assignment.state in (_LEAVING, _GONE):
            return
        if assignment.held is None and parked.state is _WAITING:
            self._waiting.end_wait(parked, now)
        else:  # it can start when its partition is released, or when it becomes the head of its lane
            parked.not_before = 0.0

    def fail(self, attempt: Attempt[R], error: BaseException, verdict: Verdict, now: float) -> bool:
        """Apply the verdict on a failed attempt. Returns False in the same cases as `finish`.

        After a `GiveUp` or `Later`, the attempt still counts as running, and its lane waits. The caller must store the
        dead letter or the schedule and then call `finish`, or pass it to `finish` in `outputs`.
        """
        if isinstance(verdict, Again):
            return self.retry(attempt, verdict.at, error, now, verdict.untried)
        if attempt.state is not _RUNNING or attempt.assignment.state is _GONE:
            return self._report_late(attempt, now)
        if isinstance(verdict, KeepInPlace):
            self._keep(attempt, error, verdict, now)
        return True

    def _keep(self, attempt: Attempt[R], error: BaseException, verdict: KeepInPlace, now: float) -> None:
        if self._skips_instead(attempt, now):
            return
        kept = attempt.again(attempt.not_after, error, now)
        kept.outcome = FinalOutcome(without_frames(error), verdict.instead)
        if self._commits and kept.failure:
            attempt.assignment.note_failure(attempt.offset, kept.failure)
        self._leave_lane(attempt, (kept,), now)

    # Records that are kept in their place

    def kept(self) -> list[Attempt[R]]:
        """Return the records that have failed for good and are kept in their place."""
        kept: list[Attempt[R]] = []
        for head in (
            *self._waiting.waiting(),
            *chain.from_iterable(each.held or () for each in self._assignments.values()),
        ):
            following: Attempt[R] | None = head
            while following is not None and following.is_kept:  # a batch can leave several in one lane
                kept.append(following)
                following = following.next
        return kept

    def release_kept(self, attempts: Iterable[Attempt[R]], now: float) -> int:
        """Let records that are kept start again, each in its lane, and return their number.

        Their earlier attempts no longer count, so that each record has all its attempts again.
        """
        released = 0
        for attempt in attempts:
            if attempt.is_kept and attempt.assignment.current:
                attempt.outcome = None
                if failure := attempt.failure:
                    attempt.failure = failure._replace(untried=failure.attempts)
                    if self._commits:
                        attempt.assignment.note_failure(attempt.offset, attempt.failure)
                self.unpark(attempt, now)
                released += 1
        return released

    def measure_map(self, partition: TopicPartition) -> None:
        """Measure the offset map of a partition now, and pause or resume the partition accordingly."""
        if assignment := self._assignments.get(partition):
            assignment.commit_of(assignment.progress.snapshot())
            self._backpressure.pause_or_resume(assignment)

    # Edits of records that wait

    def open_lanes(self, partition: TopicPartition, running: Iterable[Attempt[R]]) -> OpenLanes[R] | None:
        """Return the lanes of a partition, so that records that wait can be taken out of them.

        `running` has the partition's running attempts. Until `close_lanes` is called, no record of the partition can
        start. Returns None if the partition is not assigned, or is about to be revoked.
        """
        assignment = self._assignments.get(partition)
        if assignment is None or assignment.state is _LEAVING:
            return None
        heads = self._forget_waiting(assignment) if assignment.held is None else assignment.held
        return OpenLanes(assignment, heads, running)

    def unread(self, partition: TopicPartition, offsets: Iterable[int]) -> list[int]:
        """Return which of these offsets of a partition were not received yet and are not done."""
        assignment = self._assignments.get(partition)
        progress = None if assignment is None else assignment.progress
        return [each for each in offsets if progress and each >= progress.end and not progress.is_done(each)]

    def lane_of(self, record: R) -> Hashable:
        """Return the name of the lane of a record."""
        return next(iter(self._ordering.lanes_of([record])))

    def end_waiting(self, lanes: OpenLanes[R], attempt: Attempt[R], outputs: Sequence[Any]) -> None:
        """Mark a record as done that has not started. The next tick commits its offset together with the `outputs`."""
        lanes.take_out(attempt)
        assignment = lanes.assignment
        size = sum(map(self._size_of_output, outputs))
        assignment.finish(attempt, outputs, size)
        if outputs:
            self._backpressure.take_outputs(assignment.level, size, size + attempt.size)
        else:
            self._budgets[assignment.level].used -= attempt.size
        attempt.state = _DONE

    def end_ahead(self, lanes: OpenLanes[R], offset: int, outputs: Sequence[Any]) -> None:
        """Mark a record as done that has not been received yet, as `end_waiting` does. There must be outputs."""
        size = sum(map(self._size_of_output, outputs))
        lanes.assignment.finish_ahead(offset, outputs, size)
        self._backpressure.take_outputs(lanes.assignment.level, size, size)

    def put_first(self, lanes: OpenLanes[R], attempt: Attempt[R]) -> None:
        """Let a record that waits start before all others of its partition, after the earlier records of its lane."""
        chosen = [*lanes.before(attempt), attempt]
        self._first_order -= len(chosen)
        for order, each in enumerate(chosen, self._first_order):
            each.order = order

    def close_lanes(self, lanes: OpenLanes[R], now: float) -> None:
        """Let the records that are left in these lanes start again."""
        assignment = lanes.assignment
        heads = sorted(lanes.heads, key=lambda head: head.order)
        if assignment.held is not None:
            assignment.held = heads
        else:
            for head in heads:
                self._waiting.place(head, now)

    # Commits

    def tick(self, partitions: Collection[TopicPartition] | None = None) -> commit_tick.CommitTick:
        """Return everything to commit for these partitions, or for all partitions if none are given.

        Partitions without progress are left out.

        Until `committed` is called with this tick, the next tick contains everything again, including the outputs. So
        if there are outputs, the caller must find out whether a tick was committed before it commits the next one.
        """
        tick = commit_tick.take(
            assignment
            for partition, assignment in self._assignments.items()
            if partitions is None or partition in partitions
        )
        for part in tick.parts:
            self._backpressure.pause_or_resume(part.assignment)
            self._backpressure.withhold(part.assignment, part.assignment.of_outputs - part.size)
        return tick

    def refuse_maps(self, characters: int) -> None:
        """Lower the limit for offset maps because Kafka has refused a map of this many characters.

        The new limit is halfway between this size and the size of the largest map that Kafka has accepted.
        """
        middle = (self._map_accepted + characters) // 2
        self._map_limit = min(self._map_limit, max(self._map_accepted, min(middle, characters - 1)))
        for assignment in self._assignments.values():
            assignment.limit_map(self._map_limit)

    def is_uncommitted(self, partitions: Collection[TopicPartition] | None = None) -> bool:
        """Return whether any of these partitions has progress that is not committed.

        By default, all partitions are checked.
        """
        return any(
            each.finished > each.saved
            for partition, each in self._assignments.items()
            if partitions is None or partition in partitions
        )

    def committed(self, tick: commit_tick.CommitTick) -> None:
        """Record that Kafka has acknowledged a tick. This can be called more than once for the same tick."""
        largest = max((len(commit.metadata) for commit in tick.commits.values()), default=0)
        self._map_accepted = max(self._map_accepted, largest)
        for assignment, size in commit_tick.acknowledge(tick):
            if assignment.current:
                self._backpressure.release_outputs(assignment, size)

    def wants_commit(self) -> bool:
        """Return whether outputs take so much memory that they should be committed now."""
        return any(budget.wants_commit() for budget in self._budgets)

    # State

    def next_wake(self) -> float | None:
        """Return when a record can become ready without another call, or None if that cannot happen."""
        times = [self._next_slots.next_change(), self._waiting.next_time()]
        return min((time for time in times if time is not None), default=None)

    @property
    def ready(self) -> list[int]:
        """The number of records of each level that are ready to run."""
        return [level.ready for level in self._levels]

    def ready_of(self, level: int) -> int:
        """Return how many records of this level are ready to run."""
        return self._levels[level].ready

    @property
    def buffered(self) -> list[int]:
        """The number of ready records of each level that count towards its buffer."""
        return [level.buffered for level in self._levels]

    def can_start(self) -> bool:
        """Return whether records are ready at a level whose memory is not full of uncommitted outputs."""
        full = self._backpressure.full_of_outputs
        return any(queue.ready and level not in full for level, queue in enumerate(self._levels))

    @property
    def skipped(self) -> Sequence[int]:
        """How many records of each level were skipped because a newer record of their key had arrived."""
        return self._conflation.skipped if self._conflation is not None else ()

    @property
    def has_space(self) -> list[bool]:
        """Whether each level has few enough ready records that further ones are being fetched."""
        return [
            2 * level.buffered < self._buffer and demand > 0
            for level, demand in zip(self._levels, self.demand(), strict=True)
        ]

    def weigh_tenants(self, weight_of: Callable[[str], float | None]) -> None:
        """Use other weights from now on for the tenants for which this function returns one, and not None."""
        for tenants in self._tenants:
            tenants.override(weight_of)

    def busiest_tenants(self, number: int) -> dict[str, float]:
        """Return the tenants that used the most handler time, and their seconds, in descending order."""
        return self._usage.busiest(number)

    def ready_of_tenants(self, names: Collection[str]) -> dict[str, int]:
        """Return how many records of each of these tenants are ready to run, at all levels."""
        return {
            name: sum(level.remembered[name].ready for level in self._tenants if name in level.remembered)
            for name in names
        }

    @property
    def slots_taken(self) -> list[int]:
        """The number of slots that each level has taken.

        A batch takes one slot. Attempts that are still running on revoked partitions count too.
        """
        return [level.slots for level in self._levels]

    @property
    def bytes_held(self) -> list[int]:
        """The bytes that each level holds: those of records that are not done, and those of uncommitted outputs."""
        return [budget.used for budget in self._budgets]

    def committable(self, partition: TopicPartition) -> int:
        """Return the lowest offset that is not done in an assigned partition."""
        return self._assignments[partition].progress.committable

    def observe(
        self, positions: Mapping[TopicPartition, int], log_ends: Mapping[TopicPartition, int]
    ) -> list[PartitionProgress]:
        """Return the progress of all assigned partitions.

        `positions` has the next offset to fetch from each partition, and `log_ends` the ends of the logs, as far as
        they are known.
        """
        return [
            assignment.observe(positions.get(partition), log_ends.get(partition))
            for partition, assignment in self._assignments.items()
        ]

    @property
    def work_remaining(self) -> int:
        """The number of received records that are not done."""
        return sum(assignment.progress.incomplete_count for assignment in self._assignments.values())

    # The end of an attempt, and its lane

    def _leave_lane(self, attempt: Attempt[R], again: Sequence[Attempt[R]], now: float) -> None:
        assignment, batch = attempt.assignment, attempt.batch
        self._leave_slot(attempt, _REPLACED if again else _DONE, now)
        if batch is not None and attempt.lane is not ALONE:
            settled = batch.report(again)
            if settled is None:
                return
            attempt, again = settled
        head = assignment.lanes.advance(attempt, again)
        if head is not None:
            self._place(head, now)

    def _skips_instead(self, attempt: Attempt[R], now: float) -> bool:
        """Skip the record of a running attempt that would wait again, if a newer record of its key waits already."""
        if self._conflation is None or not self._conflation.replaces(attempt):
            return False
        self._conflation.skip(attempt)
        self._leave_lane(attempt, (), now)
        return True

    def _place(self, head: Attempt[R], now: float) -> None:
        assignment = head.assignment
        if assignment.state is not _LEAVING:
            if assignment.held is None:
                self._waiting.place(head, now)
            else:
                assignment.held.append(head)

    def _report_late(self, attempt: Attempt[R], now: float) -> bool:
        if attempt.state in (_RUNNING, _STALE):
            self._leave_slot(attempt, _DROPPED, now)
        return False

    def _leave_slot(self, attempt: Attempt[R], state: AttemptState, now: float) -> None:
        # Without None here, only the garbage collector could free the cycle of an attempt and its batch.
        batch, attempt.batch = attempt.batch, None
        attempt.state = state
        if batch is None or batch.leave():
            self._levels[attempt.assignment.level].leave(attempt, batch, now)


def _ascending_ends(offsets: Sequence[int]) -> list[int]:
    """Return the indexes at which runs of ascending offsets end. There is nearly always only one run.

    >>> _ascending_ends([5, 6, 9]), _ascending_ends([5, 6, 6, 3]), _ascending_ends([])
    ([3], [2, 3, 4], [])
    """
    if all(map(lt, offsets, islice(offsets, 1, None))):
        return [len(offsets)] if offsets else []
    return [end for end, (a, b) in enumerate(pairwise(offsets), 1) if a >= b] + [len(offsets)]
