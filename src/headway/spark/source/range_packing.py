"""The ranges of a micro-batch and its tasks: pure functions over offsets.

Invariants: a partition's range is split only where that is asked for. Ranges and tasks follow from the start and the
end alone, which Spark keeps in its checkpoint. So a replayed micro-batch reads exactly what it read before, in the same
tasks, on any machine. The sink relies on it: it knows by a task's number which rows it has written.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from operator import attrgetter

from headway.kafka.reading.range_reader import Range
from headway.records.record_types import TopicPartition
from headway.spark.source.stream_offset import StreamOffset

RECORDS_PER_TASK = 100_000
"""The records for which one more task pays: a wave of tasks costs about the time to read a third of them."""

RECORDS_FOR_ONE = 1_000
"""The records up to which one task reads all sooner than two have started."""

RANGES_FOR_ONE = 100
"""The ranges up to which it does: each costs a task 0.3 ms, and 1.5 ms where a backlog is behind it."""

RECORDS_OF_A_RANGE = 300
"""The records that take as long as it takes to begin a range."""


def ranges(start: StreamOffset, end: StreamOffset) -> list[Range]:
    """Return the ranges between two offsets, without empty ones.

    A partition that `start` does not name has no range yet: it begins at the offset in `end`. A topic that was created
    again in between is read from its first offset. A query's first `end` also stores where its micro-batch begins,
    since Spark's `start` is then the place where the query would begin by now.
    """
    if end.begun is not None:
        start = replace(end, offsets=end.begun)
    return [
        Range(partition, begin, stop)
        for partition, stop in sorted(end.offsets.items())
        if partition in start.offsets and (begin := _begin(start, end, partition)) < stop
    ]


def _begin(start: StreamOffset, end: StreamOffset, partition: TopicPartition) -> int:
    if start.is_surely_same_topic(end, partition):
        return start.offsets[partition]  # if the end is before that, Kafka has lost records, and there are none to read
    begun_anew = not start.same_topic(end, partition) or end.offsets[partition] < start.offsets[partition]
    return 0 if begun_anew else start.offsets[partition]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The user's bounds for tasks: the fewest, the most records of one, and whether ranges can be split for them."""

    least: int | None = None
    most_records: int | None = None
    split: bool = False

    def count(self, wanted: Collection[Range], cores: int, *, slow: bool = False) -> int:
        """Return how many tasks read the ranges where `cores` run at once; `slow` if their records are known to be.

        Without options it is one for few records, then one for each core, and more where that many pay their start.
        """
        records = sum(item.length for item in wanted)
        few = records <= RECORDS_FOR_ONE and len(wanted) <= RANGES_FOR_ONE and not slow
        found = self.least or (1 if few else cores)
        if records > RECORDS_FOR_ONE:
            found = max(found, records // RECORDS_PER_TASK)
        if self.most_records is None:
            return found
        found = max(found, -(-records // self.most_records))
        return found if self.split else self._packed_within(wanted, found, self.most_records)

    @staticmethod
    def _packed_within(wanted: Collection[Range], tasks: int, most: int) -> int:
        """Return how many tasks it takes so that only a partition that is longer has more records than `most`."""
        while tasks < len(wanted):
            full = sum(len(group) > 1 and sum(item.length for item in group) > most for group in pack(wanted, tasks))
            if not full:
                break
            tasks += full
        return tasks


def divide(wanted: Iterable[Range], tasks: int, *, split: bool) -> list[list[Range]]:
    """Return the ranges in at most `tasks` groups, none of them empty, of about equal length."""
    return cut(wanted, tasks) if split else pack(wanted, tasks)


def cut(wanted: Iterable[Range], tasks: int) -> list[list[Range]]:
    """Return the ranges in at most `tasks` groups of equal length, higher levels first; ranges are split for it."""
    ordered = sorted(wanted, key=lambda item: (-item.partition.level, item))
    most = -(-sum(item.length for item in ordered) // tasks)
    groups: list[list[Range]] = []
    room = 0
    for item in ordered:
        begin = item.start
        while begin < item.end:
            if not room:
                groups.append([])
                room = most
            end = min(item.end, begin + room)
            groups[-1].append(Range(item.partition, begin, end))
            room -= end - begin
            begin = end
    return groups


def pack(wanted: Iterable[Range], tasks: int) -> list[list[Range]]:
    """Return the ranges in at most `tasks` groups that take about the same time; none is split, no group is empty."""
    groups: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(tasks)]
    heapify(groups)
    for item in sorted(wanted, key=attrgetter("length"), reverse=True):
        cost, number, members = groups[0]
        members.append(item)
        heapreplace(groups, (cost + item.length + RECORDS_OF_A_RANGE, number, members))
    return [members for _, _, members in sorted(groups, key=lambda group: group[1]) if members]
