"""The engine: records in, works out, outcomes in, commits out.

The engine is a state machine without a clock: time is an argument, effects are return values, and the driver asks for
the next wake-up. Its calls that bring partitions and records are in `intake`; what all of them need stands beside it.
The driver fetches as many records as `demand` says, but none from the partitions in `paused`. The
driver runs the works that `take` gives, reports each work, and commits what `tick` returns.

Invariants:
- Of each lane at most one work (or one batch) is running; it is the first of the lane that is not done.
- A record that was received and is not done is in exactly one state: running, ready, behind another in its lane, or
  waiting for its time.
- Nothing of an ended assignment is ever committed: a report from another epoch only frees the slot.
- A tick is a snapshot of one moment. For each partition it has the offset, the map, and all outputs of the works that
  both count as done.
- The bytes held are the records that are not done, plus the uncommitted outputs with their records.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from headway.core.engine import commit_tick
from headway.core.engine.batching import Batching
from headway.core.engine.intake import Intake
from headway.core.engine.lanes import ALONE
from headway.core.engine.partition_states import PartitionState
from headway.core.engine.work import Work
from headway.core.engine.work_states import WorkState
from headway.core.retry import Again, Verdict
from headway.records.record_types import TopicPartition

_LEAVING, _GONE = PartitionState.LEAVING, PartitionState.GONE
_RUNNING, _STALE, _DROPPED = WorkState.RUNNING, WorkState.STALE, WorkState.DROPPED
_DONE, _REPLACED = WorkState.DONE, WorkState.REPLACED

R = TypeVar("R")


class Engine(Intake[R]):
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
        retry_share: The part of the slots that records which failed before may take while others wait.
        due: The time before which a record must not run, by the same clock as `now`.
        commits: True if offsets and maps are ever committed. If False, no partition is paused for the size of its map.
        tenants: The weights of tenants, by name; then records are received with their tenants, which take turns within
            a level. Without it there are none.
        limits: The rates of tenants and keys, for this engine alone; those of tenants need `tenants`.
        rank_of: The rank of a record. Of the heads of a partition's lanes that of the highest rank runs first; by
            default that which came first. Not with tenants.
    """

    # Work

    def let_batches_fill(self, size: int, linger: float, of_one_partition: bool = False) -> None:
        """Let records wait up to `linger` seconds for a batch of this size; call it before any record is received."""
        self._waiting.batching = Batching(size, linger, of_one_partition) if linger > 0 else None

    def let_no_batch_fill(self) -> None:
        """Let no record wait for its batch to fill from now on: call it when none will come any more."""
        self._waiting.stop_batching()

    def count_slots(self, count: Callable[[], int]) -> None:
        """Ask this function how many slots there are, taken and free.

        Until then, `take` is to be called for all free slots at once, so that its limit tells their number.
        """
        self._next_slots.count = count

    def take(self, limit: int, now: float) -> list[Work[R]]:
        """Return up to `limit` works that may run now, each of the level that the policy picks, in turns there."""
        if self._waiting.entries:
            self._waiting.release_due(now)
        works = self._next_slots.take(limit, now)
        if self._tenants:
            _note_start(works, now)
        return works

    def take_batch(self, max_size: int, now: float, of_one_partition: bool = False) -> list[Work[R]]:
        """Return the first works of one lane, or works that have no lane; an empty list if none may run now.

        A lane goes on when its whole batch was reported; the works that failed come first again. Works without a lane
        are of one level, or with `of_one_partition` of one partition.
        """
        self._waiting.release_due(now)
        works = self._next_slots.take_batch(max_size, now, of_one_partition)
        if self._tenants:
            _note_start(works, now)
        return works

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
            self._settle(work, (), now)
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
            self._settle(work, (), now)
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
            if self._tenants:
                again.tenant = work.tenant
            self._settle(work, (again,), now)
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

    def tick(self, partitions: Collection[TopicPartition] | None = None) -> commit_tick.Tick:
        """Return what to commit now for these partitions, or for all: only partitions with more done than committed.

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

    def committed(self, tick: commit_tick.Tick) -> None:
        """Note that Kafka has acknowledged the tick; may be called again for the same tick."""
        largest = max((len(commit.metadata) for commit in tick.commits.values()), default=0)
        self._map_accepted = max(self._map_accepted, largest)
        for assignment, size in commit_tick.settle(tick):
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

    # The way of a work through its lane

    def _settle(self, work: Work[R], again: Sequence[Work[R]], now: float) -> None:
        assignment, batch = work.assignment, work.batch
        self._leave_slot(work, _REPLACED if again else _DONE, now)
        if batch is not None and work.lane is not ALONE:
            settled = batch.report(again)
            if settled is None:
                return
            work, again = settled
        head = assignment.lanes.settle(work, again)
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


def _note_start(works: Iterable[Work[Any]], now: float) -> None:
    for work in works:
        work.started = now
