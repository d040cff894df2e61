"""The engine: records in, works out, outcomes in, commits out.

A state machine without a clock: time is an argument, effects are return values, the next wake-up is asked for. A
driver fetches what `demand` says from the partitions that `held` does not name, runs what `take` gives, reports each
work, and commits what `tick` says.

Invariants:
- Of each lane at most one work (or one batch) is running; it is the first of the lane that is not done.
- A record that was received and is not done is exactly one of: running, ready, behind another in its lane, or waiting
  for its time.
- What ended with its assignment is never committed: a report from another epoch changes nothing but the slot.
- A tick is one moment: of each partition the offset, the map, and all outputs of the works that both count as done.
- The bytes held are the sum over the records that are not done, and over the outputs that are not committed, with their
  records.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice, pairwise, repeat
from operator import lt
from typing import Any, Generic, TypeVar

from headway.core.engine import commit_tick
from headway.core.engine.assignment import Assignment
from headway.core.engine.batching import Batching
from headway.core.engine.lanes import ALONE, LaneNames, Ordering
from headway.core.engine.memory_budget import MemoryBudget
from headway.core.engine.ready_queue import ReadyQueue
from headway.core.engine.slot_policies import FairSlots, SlotPolicy
from headway.core.engine.work import Work
from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, encode
from headway.core.retry import Again, Verdict
from headway.records import TopicPartition

_MOST_GONE = 100

R = TypeVar("R")


class Engine(Generic[R]):
    """Decides what runs when, and what may be committed. Not thread-safe: its driver lets one thread at a time in.

    Records have an `offset` and, where lanes are keys, a `raw_key`. The functions given must not raise.

    Args:
        ordering: What must run in order; or a function that names the lanes of records.
        slots: The policy that shares the slots over the levels; by default fair, each level twice the one below.
        levels: How many there are.
        buffer: How many ready records each level keeps, so that no slot waits for a fetch.
        room: How many bytes each level may hold.
        size_of: The bytes that a record takes in memory.
        size_of_output: The bytes that an output takes in memory.
        due: The time before which a record shall not run, of the same clock as `now`.
        commits: Whether offsets and maps are ever committed. If not, no partition is held for the size of its map.
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
        due: Callable[[R], float] | None = None,
        commits: bool = True,
    ) -> None:
        self._lane_names = ordering.lane_names if isinstance(ordering, Ordering) else ordering
        self._slots = slots or FairSlots([2**level for level in range(levels)])
        self._buffer = buffer
        self._size_of = size_of
        self._size_of_output = size_of_output
        self._due = due
        self._commits = commits
        self._assignments: dict[TopicPartition, Assignment[R]] = {}
        self._levels: list[ReadyQueue[R]] = [ReadyQueue() for _ in range(levels)]
        self._rooms = [MemoryBudget(room) for _ in range(levels)]
        self._map_limit = MAX_CHARACTERS
        self._map_accepted = 0  # characters of the largest that Kafka took
        self._held: set[TopicPartition] = set()
        self._full_of_outputs: set[int] = set()  # levels
        self._later: list[tuple[float, int, Work[R]]] = []  # heads whose time has not come, and some that went before,
        self._gone = 0  # at the most so many
        self._gathering: Batching[R] | None = None
        self._orders = count()
        self._epochs = count(1)

    # Partitions

    def assign(self, partition: TopicPartition, committed: OffsetMap) -> int:
        """The partition is ours, to be read from its committed offset; returns the new epoch.

        One that we have already is read from elsewhere from now on, and what is known of it is forgotten.
        """
        self.revoke([partition])
        assignment: Assignment[R] = Assignment(partition, committed, next(self._epochs), self._map_limit)
        self._assignments[partition] = assignment
        self._map_accepted = max(self._map_accepted, len(encode(committed)))  # from before, or by somebody else
        self._rooms[partition.level].partitions += 1
        return assignment.epoch

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not ours any more; what still runs of them is stale."""
        for partition in partitions:
            if assignment := self._assignments.pop(partition, None):
                self._drop(assignment)

    def retire(self, partitions: Iterable[TopicPartition]) -> None:
        """Start nothing more of these, which are about to be revoked; what runs may still be reported and committed."""
        for partition in partitions:
            if assignment := self._assignments.get(partition):
                assignment.retired = True
                self._forget_waiting(assignment)

    def _drop(self, assignment: Assignment[R]) -> None:
        assignment.end()
        self._held.discard(assignment.partition)
        self._forget_waiting(assignment)
        room = self._rooms[assignment.level]
        room.partitions -= 1
        room.used -= assignment.bytes
        self._keep_outputs(assignment.level, assignment.withheld - assignment.of_outputs)

    def _forget_waiting(self, assignment: Assignment[R]) -> None:
        self._levels[assignment.level].drop(assignment)
        self._keep_later(lambda head: head.assignment is not assignment)
        if self._gathering:
            self._gathering.drop(assignment)

    def assigned(self) -> Collection[TopicPartition]:
        """The partitions that are ours."""
        return self._assignments.keys()

    # Intake

    def demand(self) -> list[int]:
        """How many records to fetch next of each level: what its buffer lacks of *ready* ones.

        Those that wait behind others or for their time do not count, so they never keep ready ones out; what bounds
        them is the room, through `held`.
        """
        held = [0] * len(self._levels)
        for partition in self._held:
            held[partition.level] += 1
        return [
            max(0, min(self._buffer - level.ready, room.records_left())) if room.partitions > held_of_level else 0
            for level, room, held_of_level in zip(self._levels, self._rooms, held, strict=True)
        ]

    def held(self) -> set[TopicPartition]:
        """The partitions to fetch nothing from for now: their share of the room is full, or their map is too large.

        What was fetched already is received all the same.
        """
        for partition in list(self._held):
            self._hold_or_free(self._assignments[partition])
        return set(self._held)

    def receive(self, partition: TopicPartition, records: Sequence[R], now: float) -> None:
        """Take in what was fetched of a partition, in the order of its log; nothing if it is not ours, or is retired.

        Where the offsets go back, by a seek or because the log was truncated, a new epoch begins.
        """
        offsets: list[int] = [record.offset for record in records]  # type: ignore[attr-defined]
        start = 0
        for stop in _ascending_ends(offsets):
            assignment = self._assignments.get(partition)
            if assignment and not assignment.retired:
                self._receive(partition, records[start:stop], offsets[start:stop], now)
            start = stop

    def _receive(self, partition: TopicPartition, records: Sequence[R], offsets: Sequence[int], now: float) -> None:
        if offsets[0] < self._assignments[partition].progress.end:
            self.assign(partition, OffsetMap(offsets[0]))
        assignment = self._assignments[partition]
        fresh = assignment.progress.receive(offsets)
        if len(fresh) < len(offsets):
            is_fresh = set(fresh)
            records = [record for record, offset in zip(records, offsets, strict=True) if offset in is_fresh]
        if records:
            self._enqueue(assignment, records, fresh, now)
            self._hold_or_free(assignment)

    def _enqueue(self, assignment: Assignment[R], records: Sequence[R], offsets: Sequence[int], now: float) -> None:
        sizes = list(map(self._size_of, records))
        lanes = self._lane_names(records)
        works = list(map(Work, records, offsets, sizes, lanes, repeat(assignment), repeat(now), self._orders))
        assignment.bytes += (size := sum(sizes))
        self._rooms[assignment.level].fill(size, len(sizes))
        if self._gathering:
            self._gather(assignment.lanes.extend(works), works, now)
            return
        if self._due is None:
            self._levels[assignment.level].arrive(assignment.lanes.extend(works))
            return
        for work in works:
            work.not_before = self._due(work.record)
        for head in assignment.lanes.extend(works):
            self._place(head, now)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Nothing below the consumer's position is still to come: transaction markers do not look like lag."""
        if (assignment := self._assignments.get(partition)) and position > assignment.progress.end:
            assignment.progress.advance(position)
            assignment.finished += 1

    def _hold_or_free(self, assignment: Assignment[R]) -> None:
        full = self._rooms[assignment.level].is_full_for(assignment.bytes, assignment.held)
        assignment.held = full or (self._commits and assignment.is_pressed())
        if assignment.held:
            self._held.add(assignment.partition)
        else:
            self._held.discard(assignment.partition)

    # Work

    def gather(self, max_size: int, linger: float) -> None:
        """From now on let records wait for their batch to fill, up to `linger` seconds; before any is received."""
        self._gathering = Batching(max_size, linger) if linger > 0 else None

    def take(self, limit: int, now: float) -> list[Work[R]]:
        """Up to `limit` works that may run now, each of the level that the policy picks, oldest record first."""
        if self._later:
            self._release_due(now)
        works: list[Work[R]] = []
        while len(works) < limit and (level := self._pick(now)):
            works.append(level.take())
        return works

    def take_batch(self, max_size: int, now: float) -> list[Work[R]]:
        """The first works of one lane, or works that have no lane; none where none may run now.

        Each work of a batch is reported on its own. A lane goes on when all of its batch are; those that failed
        come first again.
        """
        self._release_due(now)
        level = self._pick(now)
        return level.take_batch(max_size, now) if level else []

    def _pick(self, now: float) -> ReadyQueue[R] | None:
        levels = self._levels
        if full := self._full_of_outputs:
            levels = [level.without_ready() if index in full else level for index, level in enumerate(levels)]
        if len(levels) == 1:
            return levels[0] if levels[0].ready else None
        picked = self._slots.pick(levels, now)
        return None if picked is None else levels[picked]

    # Outcomes

    def finish(self, work: Work[R], now: float, outputs: Sequence[Any] = ()) -> bool:
        """The work is done, its dead letter stored if it is one; `outputs` ride with its offset in the next tick.

        False if that is not ours to say any more: it was reported already, or its partition is no longer ours.
        """
        assignment = work.assignment
        if work.running and assignment.current:
            size = sum(map(self._size_of_output, outputs)) if outputs else 0
            assignment.finish(work, outputs, size)
            if outputs:
                self._rooms[assignment.level].used += size
                self._keep_outputs(assignment.level, size + work.size)
            else:
                self._rooms[assignment.level].used -= work.size
            self._settle(work, (), now)
            return True
        self._leave_slot(work)
        return False

    def retry(self, work: Work[R], at: float, error: BaseException | None, now: float, untried: bool = False) -> bool:
        """The work is to be tried again, at the head of its lane, not before `at`; False as for `finish`.

        With an error this attempt counts as failed, without one it was none. `untried` is as in the retries' verdict.
        """
        if work.running and work.assignment.current:
            self._settle(work, (work.again(at, error, now, untried),), now)
            return True
        self._leave_slot(work)
        return False

    def fail(self, work: Work[R], error: BaseException, verdict: Verdict, now: float) -> bool:
        """The work failed, and this is what the retries say; False as for `finish`.

        With another verdict the work still runs, and its lane waits, until `finish` says that its letter or its
        schedule is stored (or rides in `outputs`).
        """
        if isinstance(verdict, Again):
            return self.retry(work, verdict.at, error, now, verdict.untried)
        if work.running and work.assignment.current:
            return True
        self._leave_slot(work)
        return False

    # Commits

    def tick(self, partitions: Collection[TopicPartition] | None = None) -> commit_tick.Tick:
        """What to commit now of these partitions, or of all: those for which more is done than was committed.

        Until `committed` says that it was, all of it is due again, the outputs too: so where there are outputs, what
        became of a tick has to be known before the next one is committed.
        """
        tick = commit_tick.take(
            assignment
            for partition, assignment in self._assignments.items()
            if partitions is None or partition in partitions
        )
        for part in tick.parts:
            self._hold_or_free(part.assignment)
            self._withhold(part.assignment, part.assignment.of_outputs - part.size)
        return tick

    def _withhold(self, assignment: Assignment[R], size: int) -> None:
        """Let no more wait for a commit of outputs that none would take now: what closes the gap has yet to start."""
        before, assignment.withheld = assignment.withheld, size
        if size != before:
            self._keep_outputs(assignment.level, before - size)

    def refuse_maps(self, characters: int) -> None:
        """Kafka refuses a map of so many characters: look for its limit between that and what it took."""
        middle = (self._map_accepted + characters) // 2
        self._map_limit = min(self._map_limit, max(self._map_accepted, min(middle, characters - 1)))
        for assignment in self._assignments.values():
            assignment.limit_map(self._map_limit)

    def is_uncommitted(self, partitions: Collection[TopicPartition] | None = None) -> bool:
        """Whether more is done of these partitions, or of any, than was committed."""
        return any(
            each.finished > each.saved
            for partition, each in self._assignments.items()
            if partitions is None or partition in partitions
        )

    def committed(self, tick: commit_tick.Tick) -> None:
        """Kafka has acknowledged the tick; may be said again."""
        largest = max((len(commit.metadata) for commit in tick.commits.values()), default=0)
        self._map_accepted = max(self._map_accepted, largest)
        for assignment, size in commit_tick.settle(tick):
            if assignment.current:
                assignment.bytes -= size
                assignment.of_outputs -= size
                self._rooms[assignment.level].used -= size
                self._keep_outputs(assignment.level, -size)

    def _keep_outputs(self, level: int, size: int) -> None:
        room = self._rooms[level]
        room.of_outputs += size
        if room.is_full_of_outputs():
            self._full_of_outputs.add(level)
        else:
            self._full_of_outputs.discard(level)

    def wants_commit(self) -> bool:
        """Whether outputs take so much room that they should be committed now."""
        return any(room.wants_commit() for room in self._rooms)

    # State

    def next_wake(self) -> float | None:
        """When there may be something to take though nothing else has happened."""
        times = [self._slots.next_change(), self._later[0][0] if self._later else None]
        return min((time for time in times if time is not None), default=None)

    @property
    def ready(self) -> list[int]:
        """How many works of each level may run now."""
        return [level.ready for level in self._levels]

    def ready_of(self, level: int) -> int:
        """How many works of this level may run now."""
        return self._levels[level].ready

    @property
    def slots_taken(self) -> list[int]:
        """How many slots each level has taken, for works of lost partitions too; a batch takes one."""
        return [level.slots for level in self._levels]

    @property
    def bytes_held(self) -> list[int]:
        """How many bytes of each level's records are in memory."""
        return [room.used for room in self._rooms]

    def committable(self, partition: TopicPartition) -> int:
        """The lowest offset of an assigned partition that is not done."""
        return self._assignments[partition].progress.committable

    @property
    def work_remaining(self) -> int:
        """How many received records are not done."""
        return sum(assignment.progress.incomplete_count for assignment in self._assignments.values())

    # How a work moves on

    def _settle(self, work: Work[R], again: Sequence[Work[R]], now: float) -> None:
        assignment, batch = work.assignment, work.batch
        self._leave_slot(work)
        if batch is not None and work.lane is not ALONE:
            settled = batch.report(again)
            if settled is None:
                return
            work, again = settled
        head = assignment.lanes.settle(work, again)
        if head is not None and not assignment.retired:
            self._place(head, now)

    def _leave_slot(self, work: Work[R]) -> None:
        if not work.running:
            return
        batch, work.batch = work.batch, None  # which has the works: only a collector would free them
        work.running = False
        if batch is None or batch.leave():
            self._levels[work.assignment.level].slots -= 1

    def _gather(self, heads: Sequence[Work[R]], works: Sequence[Work[R]], now: float) -> None:
        behind = set(works).difference(heads)
        for work in filter(behind.__contains__, works):  # first: who waits from now on counts those behind it itself
            self._release_full(self._gathering.join(work))  # type: ignore[union-attr]
        for head in heads:
            self._place(head, now)

    def _place(self, head: Work[R], now: float) -> None:
        if self._gathering and (until := self._gathering.until(head)) > now:
            head.not_before = until
            self._put_off(until, head)
            self._release_full(self._gathering.wait(head))
            return
        if head.not_before > now:
            self._put_off(head.not_before, head)
        else:
            self._levels[head.assignment.level].release(head)

    def _put_off(self, until: float, head: Work[R]) -> None:
        # Not by the head's own order: an earlier attempt at the same record may still be there, for the same time.
        heappush(self._later, (until, next(self._orders), head))

    def _release_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            at, _, head = heappop(self._later)
            if head.not_before == at:
                if self._gathering:
                    self._gathering.leave(head)
                self._levels[head.assignment.level].release(head)

    def _release_full(self, heads: Iterable[Work[R]]) -> None:
        for head in heads:
            head.not_before = 0.0  # its entry among those for later counts no more
            self._gone += 1
            self._levels[head.assignment.level].release(head)
        if self._gone > max(_MOST_GONE, len(self._later) // 2):
            self._keep_later(lambda _: True)

    def _keep_later(self, wanted: Callable[[Work[R]], bool]) -> None:
        self._later = [entry for entry in self._later if entry[2].not_before == entry[0] and wanted(entry[2])]
        heapify(self._later)
        self._gone = 0


def _ascending_ends(offsets: Sequence[int]) -> list[int]:
    """Where stretches of ascending offsets end; nearly always there is one.

    >>> _ascending_ends([5, 6, 9]), _ascending_ends([5, 6, 6, 3]), _ascending_ends([])
    ([3], [2, 3, 4], [])
    """
    if all(map(lt, offsets, islice(offsets, 1, None))):
        return [len(offsets)] if offsets else []
    return [end for end, (a, b) in enumerate(pairwise(offsets), 1) if a >= b] + [len(offsets)]
