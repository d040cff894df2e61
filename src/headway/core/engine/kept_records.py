"""Relief for partitions that records which are kept in their place have filled.

A kept record is a gap in its partition's offset map, and takes memory, as do the records behind it in its lane. If the
map or the memory is full, the partition receives no more records. Then the oldest kept records are given up.

Invariants: records are given up only while their partition is paused, and only if its map is full, or if kept records
and those behind them take at least half of its memory. After each step, the next one waits until the records of the
step are done, and the map is measured again.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.partition_states import PartitionState
from headway.records.record_types import TopicPartition

NEARLY_FULL = 0.8
"""The fraction of the space for offset maps at which kept records are reported."""

_STEP = 10  # one in this many kept records of a partition is given up at a time


class Fullness(NamedTuple):
    """A partition that kept records have nearly filled, or have filled.

    `given_up` is the number of records that were given up now; 0 if the partition is only nearly full.
    """

    partition: TopicPartition
    kept: int
    map_fullness: float
    given_up: int = 0


class KeptRecords:
    """Watches how full partitions are of kept records, and gives up the oldest ones of a full partition."""

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._leaving: dict[Assignment[Any], Sequence[Attempt[Any]]] = {}  # records that were given up in the last step
        self._reported = set[Assignment[Any]]()

    def relieve(self, now: float) -> Iterator[Fullness]:
        """Give up the oldest kept records of full partitions. Yields partitions that are full or become nearly full.

        The dispatch stores the records that are given up as dead letters.
        """
        by_partition: defaultdict[Assignment[Any], list[Attempt[Any]]] = defaultdict(list)
        for attempt in self._engine.kept():
            by_partition[attempt.assignment].append(attempt)
        for known in [each for each in (*self._leaving, *self._reported) if each not in by_partition]:
            self._leaving.pop(known, None)
            self._reported.discard(known)
        for assignment, kept in by_partition.items():
            if self._is_full(assignment, kept):
                yield self._give_up_oldest(assignment, kept, now)
            elif (fullness := assignment.map_fullness()) < NEARLY_FULL:
                self._reported.discard(assignment)
            elif assignment not in self._reported:
                self._reported.add(assignment)
                yield Fullness(assignment.partition, len(kept), fullness)

    def _is_full(self, assignment: Assignment[Any], kept: Sequence[Attempt[Any]]) -> bool:
        if not _is_paused(assignment):
            return False
        if any(not assignment.progress.is_done(each.offset) for each in self._leaving.get(assignment, ())):
            return False
        self._engine.measure_map(assignment.partition)
        if not _is_paused(assignment):
            return False
        return assignment.pressed or 2 * sum(map(_size_of_lane, kept)) >= assignment.bytes

    def _give_up_oldest(self, assignment: Assignment[Any], kept: list[Attempt[Any]], now: float) -> Fullness:
        kept.sort(key=lambda attempt: attempt.offset)
        oldest = self._leaving[assignment] = kept[: -(-len(kept) // _STEP)]
        for attempt in oldest:
            self._engine.unpark(attempt, now)
        return Fullness(assignment.partition, len(kept), assignment.map_fullness(), len(oldest))


def _is_paused(assignment: Assignment[Any]) -> bool:
    return assignment.state is PartitionState.PAUSED


def _size_of_lane(head: Attempt[Any]) -> int:
    """Return the size of a record and of the records behind it in its lane."""
    size = 0
    following: Attempt[Any] | None = head
    while following is not None:
        size += following.size
        following = following.next
    return size
