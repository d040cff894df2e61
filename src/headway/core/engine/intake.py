"""The partitions of an engine, and the records that come in.

The engine is one state, and its calls are in two modules: these, and in `engine` what runs, ends and is committed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, islice, pairwise, repeat
from operator import lt
from typing import Any, Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.backpressure import Backpressure
from headway.core.engine.lanes import LaneNames, Ordering
from headway.core.engine.next_slots import NextSlots
from headway.core.engine.partition_states import PartitionEvent, PartitionState
from headway.core.engine.rate_limits import Entrance, LimitedSlots, RateLimits
from headway.core.engine.ready_queue import ReadyQueue, TenantQueue
from headway.core.engine.slot_policies import FairSlots, SlotPolicy
from headway.core.engine.tenants import Tenants, Usage
from headway.core.engine.waiting_heads import WaitingHeads
from headway.core.engine.work import NOTHING_BROUGHT, Brought, Work
from headway.core.engine.work_states import WorkState
from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, encode
from headway.core.offsets.trailer import NOTHING_TRIED, Tried
from headway.records.record_types import TopicPartition

_LEAVING, _GONE = PartitionState.LEAVING, PartitionState.GONE
_RUNNING, _STALE = WorkState.RUNNING, WorkState.STALE

R = TypeVar("R")


class Intake(Generic[R]):
    """The part of an engine that partitions come to and go from, and that records are received by.

    It has all the state of the `Engine`, which says what its arguments are.
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
        due: Callable[[R], float] | None = None,
        commits: bool = True,
        tenants: Mapping[str, float] | None = None,
        limits: RateLimits[R] | None = None,
        rank_of: Callable[[R], float] | None = None,
    ) -> None:
        self._lane_names = ordering.lane_names if isinstance(ordering, Ordering) else ordering
        self._buffer = buffer
        self._size_of = size_of
        self._size_of_output = size_of_output
        self._due = due
        self._commits = commits
        self._assignments: dict[TopicPartition, Assignment[R]] = {}
        self._usage = Usage()
        self._tenants = [Tenants(tenants, self._usage) for _ in range(levels)] if tenants is not None else []
        self._levels: list[ReadyQueue[R]] = [TenantQueue(each) for each in self._tenants]
        self._levels = self._levels or [ReadyQueue(rank_of=rank_of) for _ in range(levels)]
        self._backpressure = Backpressure(room, levels, commits)
        self._budgets = self._backpressure.budgets
        policy = slots or FairSlots([2**level for level in range(levels)])
        choice = (self._levels, policy, retry_share, self._backpressure.full_of_outputs)
        self._next_slots = LimitedSlots(limits, *choice) if limits else NextSlots(*choice)
        self._entrances: Sequence[Entrance[R]] = limits.entrances(self._levels) if limits else self._levels
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
        """Have these works be stale if they run: their reports only free their slots."""
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
        """Return what is done with a partition."""
        return assignment.state if (assignment := self._assignments.get(partition)) else _GONE

    # Intake

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
        """Take in fetched records of a partition, in the order of its log, with what they bring along.

        `tenants` has the tenant of each, if there are any.

        Records of a partition that is not assigned, or is retired, are ignored. Where the offsets go back, by a seek or
        because the log was truncated, a new epoch begins.
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
        works = list(map(Work, records, offsets, sizes, lanes, repeat(assignment), repeat(now), self._orders))
        if self._tenants:
            for work, tenant in zip(works, tenants, strict=True):
                work.tenant = tenant
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
        if self._due is None and not brought and not has_failed:
            self._entrances[assignment.level].arrive(assignment.lanes.extend(works))
            return
        if self._due is not None:
            for work in works:
                work.not_before = self._due(work.record)
        for head in assignment.lanes.extend(works):
            self._waiting.place(head, now)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Note the consumer's position: no record below it will come, so transaction markers do not look like lag."""
        if (assignment := self._assignments.get(partition)) and position > assignment.progress.end:
            assignment.progress.advance(position)
            assignment.finished += 1


def _ascending_ends(offsets: Sequence[int]) -> list[int]:
    """Return where stretches of ascending offsets end; nearly always there is one.

    >>> _ascending_ends([5, 6, 9]), _ascending_ends([5, 6, 6, 3]), _ascending_ends([])
    ([3], [2, 3, 4], [])
    """
    if all(map(lt, offsets, islice(offsets, 1, None))):
        return [len(offsets)] if offsets else []
    return [end for end, (a, b) in enumerate(pairwise(offsets), 1) if a >= b] + [len(offsets)]
