"""Applies the memory limits: decides which partitions to pause, how much to fetch, and which levels must wait.

Invariants: a partition is paused while its share of its level's memory is full, or while its offset map is too large. A
level starts no attempts while uncommitted outputs fill its memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.engine.assignment import Assignment
from headway.core.engine.memory_budget import MemoryBudget
from headway.core.engine.partition_states import PartitionEvent, PartitionState
from headway.core.engine.ready_queue import ReadyQueue
from headway.records.record_types import TopicPartition


class Backpressure:
    """The memory budgets of all levels, and the partitions and levels that these budgets make wait.

    Args:
        most_bytes: The number of bytes that each level may hold.
        levels: The number of levels.
        commits: True if offsets and maps are ever committed. If False, no partition is paused because of the size of
            its map.
    """

    def __init__(self, most_bytes: int, levels: int, commits: bool) -> None:
        self.budgets = [MemoryBudget(most_bytes) for _ in range(levels)]
        self.full_of_outputs: set[int] = set()  # the levels whose memory is full of uncommitted outputs
        self._commits = commits
        self._paused: set[TopicPartition] = set()

    def begin(self, assignment: Assignment[Any]) -> None:
        """Record that the reading of a partition begins, so that the partition gets a share of its level's memory."""
        self.budgets[assignment.level].partitions += 1

    def end(self, assignment: Assignment[Any]) -> None:
        """Release all memory of an assignment that has ended."""
        self._paused.discard(assignment.partition)
        budget = self.budgets[assignment.level]
        budget.partitions -= 1
        budget.used -= assignment.bytes
        self.keep_outputs(assignment.level, assignment.withheld - assignment.of_outputs)

    def demand(self, levels: Sequence[ReadyQueue[Any]], buffer: int) -> list[int]:
        """Return how many records to fetch for each level to fill its buffer, as far as the level's memory allows."""
        paused = [0] * len(levels)
        for partition in self._paused:
            paused[partition.level] += 1
        return [
            max(0, min(buffer - level.buffered, budget.records_left())) if budget.partitions > paused_of_level else 0
            for level, budget, paused_of_level in zip(levels, self.budgets, paused, strict=True)
        ]

    def paused(self, assignments: Mapping[TopicPartition, Assignment[Any]]) -> set[TopicPartition]:
        """Resume the paused partitions that have free memory again, and return those that are still paused."""
        for level, budget in enumerate(self.budgets):
            budget.note_shares(each.bytes for each in assignments.values() if each.level == level)
        for partition in list(self._paused):
            self.pause_or_resume(assignments[partition])
        return set(self._paused)

    def pause_or_resume(self, assignment: Assignment[Any]) -> None:
        """Pause a partition whose memory or offset map is full, or resume it if neither is full any longer."""
        if assignment.state is PartitionState.LEAVING:  # this partition receives no more records
            return
        is_paused = assignment.state is PartitionState.PAUSED
        full = self.budgets[assignment.level].is_full_for(assignment.bytes, is_paused)
        full = full or (self._commits and assignment.is_pressed())
        if full and not is_paused:
            assignment.on(PartitionEvent.FILLED)
            self._paused.add(assignment.partition)
        elif is_paused and not full:
            assignment.on(PartitionEvent.EASED)
            self._paused.discard(assignment.partition)

    def take_outputs(self, level: int, size: int, kept: int) -> None:
        """Record that outputs of `size` bytes wait for a commit. The outputs and their records take `kept` bytes."""
        self.budgets[level].used += size
        self.keep_outputs(level, kept)

    def keep_outputs(self, level: int, size: int) -> None:
        """Add `size`, which can be negative, to the bytes of the outputs and records that wait for a commit."""
        budget = self.budgets[level]
        budget.of_outputs += size
        if budget.is_full_of_outputs():
            self.full_of_outputs.add(level)
        else:
            self.full_of_outputs.discard(level)

    def withhold(self, assignment: Assignment[Any], size: int) -> None:
        """Stop counting outputs of `size` bytes as waiting for a commit, because no commit can contain them yet.

        Earlier records must be handled first, so these outputs must not prevent the level from starting attempts.
        """
        before, assignment.withheld = assignment.withheld, size
        if size != before:
            self.keep_outputs(assignment.level, before - size)

    def release_outputs(self, assignment: Assignment[Any], size: int) -> None:
        """Release the bytes of outputs that were committed."""
        assignment.bytes -= size
        assignment.of_outputs -= size
        self.budgets[assignment.level].used -= size
        self.keep_outputs(assignment.level, -size)
