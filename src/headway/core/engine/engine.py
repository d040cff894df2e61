"""The engine: records in, works out, outcomes in, commits out.

The engine is a state machine without a clock: time is an argument, effects are return values, and the driver asks for
the next wake-up. The driver fetches as many records as `demand` returns, but none from the partitions in `paused`. It
runs the works that `take` returns, reports the end of each, and commits what `tick` returns.

Invariants:
- Of each lane at most one work (or one batch) is running; it is the first of the lane that is not done.
- A record that was received and is not done is in exactly one state: running, ready, behind another in its lane, or
  waiting for its time.
- Nothing of an ended assignment is ever committed: a report from another epoch only frees the slot.
- A tick is a snapshot of one moment. For each partition it has the offset, the map, and all outputs of the works that
  both count as done.
- The bytes held are the records that are not done, plus the uncommitted outputs with their records.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, islice, pairwise, repeat
from operator import lt
from typing import Any, Generic, TypeVar

from headway.core.engine import commit_tick
from headway.core.engine.assignment import Assignment
from headway.core.engine.backpressure import Backpressure
from headway.core.engine.batching import Batching
from headway.core.engine.lanes import ALONE, LaneNames, Ordering
from headway.core.engine.next_slots import NextSlots
from headway.core.engine.partition_states import PartitionEvent, PartitionState
from headway.core.engine.rate_limits import Entrance, LimitedSlots, RateLimits
from headway.core.engine.ready_queue import ReadyQueue, TenantQueue
from headway.core.engine.slot_policies import FairSlots, SlotPolicy
from headway.core.engine.tenants import Tenants, Usage
from headway.core.engine.waiting_heads import WaitingHeads
from headway.core.engine.work import NOTHING_BROUGHT, Brought, TenantWork, Work
from headway.core.engine.work_states import WorkState
from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, encode
from headway.core.offsets.trailer import NOTHING_TRIED, Tried
from headway.core.retry import Again, Verdict
from headway.records.record_types import TopicPartition

_LEAVING, _GONE = PartitionState.LEAVING, PartitionState.GONE
_RUNNING, _STALE, _DROPPED = WorkState.RUNNING, WorkState.STALE, WorkState.DROPPED
_DONE, _REPLACED = WorkState.DONE, WorkState.REPLACED

R = TypeVar("R")


class Engine(Generic[R]):
    """The state machine that decides which works run when, and what may be committed.

    The engine is not thread-safe: its driver lets one thread at a time in. Records have an `offset` and, where lanes
    are keys, a `raw_key`. The functions given must not raise.

    Args:
        ordering: The records that must run in order; or a function that names the lanes of records.
        slots: The policy that shares the slots over the levels; by default fair, each level twice the one below.
        levels: The number of levels.
        buffer: The number of ready records that each level keeps, so that no slot waits for a fetch.
        room: The number of bytes that each level may hold.
        size_of: The bytes that a record takes in memory.
        size_of_output: The bytes that an output takes in memory.
        retry_share: The fraction of the slots that records which failed before may take while others wait.
        commits: True if offsets and maps are ever committed. If False, no partition is paused for the size of its map.
        tenants: The weights of tenants, by name; then records are received with their tenants, which take turns within
            a level. Without it there are none.
        tenant_rate: The number of works of each tenant that may start per second, or a function that returns it for a
            tenant. It needs `tenants`. By default there is no limit.
        key_rate: The number of works with each key that may start per second. By default there is no limit.
        rank_of: The rank of a record. Of the heads of a partition's lanes that of the highest rank runs first; by
            default that which came first. Not with tenants.
    """

    def __init__(
        self,
        ordering: Ordering | LaneNames = Ordering.KEY,
        *,
        levels: int = 1,
        slots: SlotPolicy | None = None,
        buffer: int = 1000,
        room: int = 64 * 2**20,
        size_of: Callable[[R], int] = lambda record: 1024,
        size_of_output: Callable[[Any], int] = lambda output: 1024,
        retry_share: float = 0.25,
        commits: bool = True,
        tenants: Mapping[str, float] | None = None,
        tenant_rate: float | Callable[[str], float | None] | None = None,
        key_rate: float | None = None,
        rank_of: Callable[[R], float] | None = None,
    ) -> None:
        self._lane_names = ordering.lane_names if isinstance(ordering, Ordering) else ordering
        self._buffer = buffer
        self._size_of = size_of
        self._size_of_output = size_of_output
        self._commits = commits
        self._assignments: dict[TopicPartition, Assignment[R]] = {}
        self._usage = Usage()
        self._tenants = [Tenants(tenants, self._usage) for _ in range(levels)] if tenants is not None else []
        self._levels: list[ReadyQueue[R]] = [TenantQueue(each) for each in self._tenants]
        self._levels = self._levels or [ReadyQueue(rank_of=rank_of) for _ in range(levels)]
        self._backpressure = Backpressure(room, levels, commits)
        self._budgets = self._backpressure.budgets
        policy = slots or FairSlots([2**level for level in range(levels)])
        full = self._backpressure.full_of_outputs
        self.limits: RateLimits[R] | None = None
        """The rate limits of tenants and keys, if there are any."""
        self._entrances: Sequence[Entrance[R]] = self._levels
        if tenant_rate is None and key_rate is None:
            self._next_slots = NextSlots(self._levels, policy, retry_share, full)
        else:
            self.limits = RateLimits(self._levels, tenant_rate, key_rate)
            self._entrances = self.limits.entrances
            self._next_slots = LimitedSlots(self.limits, self._levels, policy, retry_share, full)
        self._map_limit = MAX_CHARACTERS
        self._map_accepted = 0  # characters of the largest map that Kafka took
        self._orders = count()
        self._waiting = WaitingHeads(self._entrances, self._orders)
        self._epochs = count(1)

    # Partitions

    def assign(
        self,
        partition: TopicPartition,
        committed: OffsetMap,
        moved: bool = False,
        log: bytes = b"",
        tried: Mapping[int, Tried] = NOTHING_TRIED,
    ) -> int:
        """Start to read a partition from its committed offset, and return the new epoch.

        With `moved` the offset is not the committed one yet, and the next tick has it. If the partition is assigned
        already, the engine forgets what it knows of it and starts at the new offset.

        `log` is the mark of the topic's id, which commits name, and `tried` has the failed attempts of earlier owners.
        """
        self.revoke([partition])
        assignment: Assignment[R] = Assignment(
            partition, committed, next(self._epochs), self._map_limit, log, tried if self._commits else NOTHING_TRIED
        )
        self._assignments[partition] = assignment
        self._map_accepted = max(self._map_accepted, len(encode(committed)))  # by an earlier consumer
        assignment.finished += moved
        self._backpressure.begin(assignment)
        return assignment.epoch

    def tried(self, partition: TopicPartition) -> Mapping[int, Tried]:
        """Return the failed attempts of a partition's records that are not done, by offset."""
        return assignment.all_tried() if (assignment := self._assignments.get(partition)) else NOTHING_TRIED

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Give the partitions up; their works that still run are stale."""
        for partition in partitions:
            if assignment := self._assignments.pop(partition, None):
                self._drop(assignment)

    def retire(self, partitions: Iterable[TopicPartition]) -> None:
        """Start nothing more of partitions that are about to be revoked.

        The works that run may still be reported and committed.
        """
        for partition in partitions:
            if (assignment := self._assignments.get(partition)) and assignment.state is not _LEAVING:
                assignment.on(PartitionEvent.REVOKED)
                self._forget_waiting(assignment)
                assignment.held = None

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Start nothing of these partitions until they are released; what runs goes on, and nothing is forgotten."""
        for partition in partitions:
            assignment = self._assignments.get(partition)
            if assignment and assignment.held is None and assignment.state is not _LEAVING:
                assignment.held = self._forget_waiting(assignment)

    def release(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Let works of these partitions start again."""
        for partition in partitions:
            if (assignment := self._assignments.get(partition)) and assignment.held is not None:
                heads, assignment.held = assignment.held, None
                for head in sorted(heads, key=lambda head: head.order):
                    self._waiting.place(head, now)

    def held(self) -> set[TopicPartition]:
        """Return the partitions that are held."""
        return {partition for partition, each in self._assignments.items() if each.held is not None}

    def give_up(self, works: Iterable[Work[R]]) -> None:
        """Mark those of these works that run as stale: their reports will only free their slots."""
        for work in works:
            if work.state is _RUNNING:
                work.state = _STALE

    def _drop(self, assignment: Assignment[R]) -> None:
        assignment.end()
        self._forget_waiting(assignment)
        self._backpressure.end(assignment)

    def _forget_waiting(self, assignment: Assignment[R]) -> list[Work[R]]:
        """Take out the heads of its lanes that wait, for a slot or a time, and return them."""
        return self._entrances[assignment.level].drop(assignment) + self._waiting.drop(assignment)

    def assigned(self) -> Collection[TopicPartition]:
        """Return the assigned partitions."""
        return self._assignments.keys()

    def state_of(self, partition: TopicPartition) -> PartitionState:
        """Return the state of a partition, assigned or not."""
        return assignment.state if (assignment := self._assignments.get(partition)) else _GONE

    # Records in

    def demand(self) -> list[int]:
        """Return how many records to fetch next for each level: the number of *ready* records that its buffer lacks.

        Records that wait behind others or for their time do not count, so they never keep ready ones out. The memory
        budget bounds the waiting records, through `paused`.
        """
        return self._backpressure.demand(self._levels, self._buffer)

    def paused(self) -> set[TopicPartition]:
        """Return the partitions to fetch nothing from for now: their share of memory is full, or their map too large.

        Records that were fetched of them already are still received.
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
    ) -> None:
        """Take in fetched records of a partition, in the order of its log.

        `brought` has the data from the headers of some records, and `tenants` the tenant of each if tenants are in use.
        Records of a partition that is not assigned, or is retired, are ignored. Where the offsets go back, because of a
        seek or because the log was truncated, a new epoch begins.
        """
        offsets: list[int] = [record.offset for record in records]  # type: ignore[attr-defined]
        start = 0
        for stop in _ascending_ends(offsets):
            assignment = self._assignments.get(partition)
            if assignment and assignment.state is not _LEAVING:
                self._receive(partition, records[start:stop], offsets[start:stop], now, brought, tenants[start:stop])
            start = stop

    def _receive(
        self,
        partition: TopicPartition,
        records: Sequence[R],
        offsets: Sequence[int],
        now: float,
        brought: Mapping[R, Brought],
        tenants: Sequence[str],
    ) -> None:
        if offsets[0] < self._assignments[partition].progress.end:
            # The log was truncated: other records have these offsets now, and none of the failed attempts.
            is_held, log = self._assignments[partition].held is not None, self._assignments[partition].log
            self.assign(partition, OffsetMap(offsets[0]), log=log)
            if is_held:  # the user's pause outlasts it
                self.hold([partition])
        assignment = self._assignments[partition]
        fresh = assignment.progress.receive(offsets)
        if len(fresh) < len(offsets):
            is_fresh = set(fresh)
            records = [record for record, offset in zip(records, offsets, strict=True) if offset in is_fresh]
            tenants = [tenant for tenant, offset in zip(tenants, offsets, strict=False) if offset in is_fresh]
        if records:
            self._enqueue(assignment, records, fresh, now, brought, tenants)
            self._backpressure.pause_or_resume(assignment)

    def _enqueue(
        self,
        assignment: Assignment[R],
        records: Sequence[R],
        offsets: Sequence[int],
        now: float,
        brought: Mapping[R, Brought],
        tenants: Sequence[str],
    ) -> None:
        sizes = list(map(self._size_of, records))
        lanes = self._lane_names(records)
        works: list[Work[R]]
        if self._tenants:
            works = list(
                map(TenantWork, records, offsets, sizes, lanes, repeat(assignment), repeat(now), self._orders, tenants)
            )
        else:
            works = list(map(Work, records, offsets, sizes, lanes, repeat(assignment), repeat(now), self._orders))
        size = sum(sizes)
        if brought:
            for work in works:
                if along := brought.get(work.record):
                    work.failure, work.not_after, more = along
                    work.size += more
                    size += more
        assignment.bytes += size
        self._budgets[assignment.level].fill(size, len(sizes))
        has_failed = bool(assignment.earlier)
        if has_failed:
            assignment.recall(works, now)
        if assignment.held is not None:
            assignment.held += assignment.lanes.extend(works)
            return
        if self._waiting.batching:
            self._waiting.take_in(assignment.lanes.extend(works), works, now)
            return
        if not brought and not has_failed:
            self._entrances[assignment.level].arrive(assignment.lanes.extend(works))
            return
        for head in assignment.lanes.extend(works):
            self._waiting.place(head, now)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Note the consumer's position: no record below it will come, so transaction markers do not look like lag."""
        if (assignment := self._assignments.get(partition)) and position > assignment.progress.end:
            assignment.progress.advance(position)
            assignment.finished += 1

    # Work

    def let_batches_fill(self, size: int, linger: float, of_one_partition: bool = False) -> None:
        """Let records wait up to `linger` seconds for a batch of this size; call it before any record is received."""
        self._waiting.batching = Batching(size, linger, of_one_partition) if linger > 0 else None

    def let_no_batch_fill(self) -> None:
        """Let no record wait for its batch to fill from now on: call it when none will come any more."""
        self._waiting.stop_batching()

    def count_slots(self, count: Callable[[], int]) -> None:
        """Ask this function how many slots there are, taken and free.

        Until then, `take` must be called for all free slots at once, so that its limit tells their number.
        """
        self._next_slots.count = count

    def take(self, limit: int, now: float) -> list[Work[R]]:
        """Start up to `limit` works, each of the level that the policy picks, and return them."""
        if self._waiting.entries:
            self._waiting.release_due(now)
        return self._next_slots.take(limit, now)

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Work[R]]:
        """Start a batch and return its works: the first of one lane, or works without a lane. Empty if none may run.

        A lane goes on when its whole batch was reported; the works that failed come first again. Works without a lane
        are of one level, or with `of_one_partition` of one partition.
        """
        self._waiting.release_due(now)
        return self._next_slots.take_batch(max_size, now, of_one_partition)

    # Outcomes

    def finish(self, work: Work[R], now: float, outputs: Sequence[Any] = ()) -> bool:
        """Mark a work as done, with its dead letter stored if it has one, and return True.

        The next tick commits the `outputs` together with the work's offset. Return False if the work was reported
        already, or if its partition is no longer assigned.
        """
        assignment = work.assignment
        if work.state is _RUNNING and assignment.state is not _GONE:
            size = sum(map(self._size_of_output, outputs)) if outputs else 0
            assignment.finish(work, outputs, size)
            if outputs:
                self._backpressure.take_outputs(assignment.level, size, size + work.size)
            else:
                self._budgets[assignment.level].used -= work.size
            self._leave_lane(work, (), now)
            return True
        return self._report_late(work, now)

    def finish_together(self, works: Sequence[Work[R]], now: float, outputs: Sequence[Any]) -> bool:
        """Mark a batch of one partition as done, as `finish` does: a tick has all its offsets and outputs, or none."""
        assignment = works[0].assignment
        if works[0].state is not _RUNNING or assignment.state is _GONE:
            for work in works:
                self._report_late(work, now)
            return False
        size = sum(map(self._size_of_output, outputs))
        kept = assignment.finish_together(works, outputs, size)
        self._backpressure.take_outputs(assignment.level, size, kept)
        for work in works:
            self._leave_lane(work, (), now)
        return True

    def retry(self, work: Work[R], at: float, error: BaseException | None, now: float, untried: bool = False) -> bool:
        """Put a work back at the head of its lane, not to run before `at`; return False as `finish` does.

        With an error this attempt counts as failed; without one it does not count. `untried` is as in the retries'
        verdict.
        """
        if work.state is _RUNNING and work.assignment.state is not _GONE:
            again = work.again(at, error, now, untried)
            if error is not None and self._commits and again.failure:
                work.assignment.note_failure(work.offset, again.failure)
            self._leave_lane(work, (again,), now)
            return True
        return self._report_late(work, now)

    def fail(self, work: Work[R], error: BaseException, verdict: Verdict, now: float) -> bool:
        """Apply the retries' verdict on a failed work; return False as `finish` does.

        With a verdict other than `Again` the work still runs and its lane waits. `finish` must then say that its dead
        letter or schedule is stored, or rides in `outputs`.
        """
        if isinstance(verdict, Again):
            return self.retry(work, verdict.at, error, now, verdict.untried)
        if work.state is _RUNNING and work.assignment.state is not _GONE:
            return True
        return self._report_late(work, now)

    # Commits

    def tick(self, partitions: Collection[TopicPartition] | None = None) -> commit_tick.CommitTick:
        """Return the commits due for these partitions, or for all; those with nothing new done are left out.

        Until `committed` is called with the tick, the next tick contains everything again, the outputs too. So where
        there are outputs, the fate of one tick must be known before the next one is committed.
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
        """Lower the map limit, since Kafka refused a map of `characters`.

        The new limit is halfway down to the largest map that Kafka accepted.
        """
        middle = (self._map_accepted + characters) // 2
        self._map_limit = min(self._map_limit, max(self._map_accepted, min(middle, characters - 1)))
        for assignment in self._assignments.values():
            assignment.limit_map(self._map_limit)

    def is_uncommitted(self, partitions: Collection[TopicPartition] | None = None) -> bool:
        """Return whether these partitions, or any, have more done than committed."""
        return any(
            each.finished > each.saved
            for partition, each in self._assignments.items()
            if partitions is None or partition in partitions
        )

    def committed(self, tick: commit_tick.CommitTick) -> None:
        """Note that Kafka has acknowledged the tick; may be called again for the same tick."""
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
        """Return when there may be something to take even if nothing else happens."""
        times = [self._next_slots.next_change(), self._waiting.next_time()]
        return min((time for time in times if time is not None), default=None)

    @property
    def ready(self) -> list[int]:
        """The number of works of each level that may run now."""
        return [level.ready for level in self._levels]

    def ready_of(self, level: int) -> int:
        """Return how many works of this level may run now."""
        return self._levels[level].ready

    @property
    def buffered(self) -> list[int]:
        """The number of ready works of each level that keep others from being fetched."""
        return [level.buffered for level in self._levels]

    def busiest_tenants(self, number: int) -> dict[str, float]:
        """Return the tenants that used the most handler time, the first of all first, with their seconds."""
        return self._usage.busiest(number)

    @property
    def slots_taken(self) -> list[int]:
        """The number of slots that each level has taken, for works of lost partitions too; a batch takes one."""
        return [level.slots for level in self._levels]

    @property
    def bytes_held(self) -> list[int]:
        """The bytes in memory of each level's records."""
        return [budget.used for budget in self._budgets]

    def committable(self, partition: TopicPartition) -> int:
        """Return the lowest offset of an assigned partition that is not done."""
        return self._assignments[partition].progress.committable

    @property
    def work_remaining(self) -> int:
        """The number of received records that are not done."""
        return sum(assignment.progress.incomplete_count for assignment in self._assignments.values())

    # The end of an attempt, and its lane

    def _leave_lane(self, work: Work[R], again: Sequence[Work[R]], now: float) -> None:
        assignment, batch = work.assignment, work.batch
        self._leave_slot(work, _REPLACED if again else _DONE, now)
        if batch is not None and work.lane is not ALONE:
            settled = batch.report(again)
            if settled is None:
                return
            work, again = settled
        head = assignment.lanes.advance(work, again)
        if head is not None and assignment.state is not _LEAVING:
            if assignment.held is None:
                self._waiting.place(head, now)
            else:
                assignment.held.append(head)

    def _report_late(self, work: Work[R], now: float) -> bool:
        if work.state in (_RUNNING, _STALE):
            self._leave_slot(work, _DROPPED, now)
        return False

    def _leave_slot(self, work: Work[R], state: WorkState, now: float) -> None:
        batch, work.batch = work.batch, None  # a reference cycle: only the garbage collector would free the works
        work.state = state
        if batch is None or batch.leave():
            self._levels[work.assignment.level].leave(work, batch, now)


def _ascending_ends(offsets: Sequence[int]) -> list[int]:
    """Return where stretches of ascending offsets end; nearly always there is one.

    >>> _ascending_ends([5, 6, 9]), _ascending_ends([5, 6, 6, 3]), _ascending_ends([])
    ([3], [2, 3, 4], [])
    """
    if all(map(lt, offsets, islice(offsets, 1, None))):
        return [len(offsets)] if offsets else []
    return [end for end, (a, b) in enumerate(pairwise(offsets), 1) if a >= b] + [len(offsets)]
