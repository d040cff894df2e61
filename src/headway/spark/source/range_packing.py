"""Divides the ranges of a micro-batch into tasks, with pure functions over offsets.

Invariants: the range of a partition is split only if the options allow it. Ranges and tasks depend only on the start
and the end of the micro-batch, which Spark keeps in its checkpoint. So a replayed micro-batch reads the same records in
the same tasks, on any machine. The sink relies on this, because it recognises the rows of a task by the task's number.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from operator import attrgetter

from headway.kafka.reading.range_reader import Range
from headway.records.record_types import TopicPartition
from headway.spark.source.stream_offset import StreamOffset

RECORDS_PER_TASK = 100_000
"""There are enough tasks that none has to read many more records than this, even if that means more tasks than cores.
Starting a wave of tasks takes about as long as reading a third of this many records."""

RECORDS_FOR_ONE = 1_000
"""Up to this many records, a single task is used, because it can read them before two tasks would have started."""

RANGES_FOR_ONE = 100
"""Up to this many ranges, a single task is used. Each range takes 0.3 ms, or 1.5 ms if more records follow it in the
partition."""

RECORDS_OF_A_RANGE = 300
"""The cost of starting a range, expressed as the number of records that could be read in that time."""


def ranges(start: StreamOffset, end: StreamOffset) -> list[Range]:
    """Return the ranges between two offsets of the query, leaving out empty ranges.

    A partition that is not in `start` has no range yet: the next micro-batch begins at its offset in `end`. A topic
    that was recreated in between is read from its first offset. In a query's first micro-batch, `end` also contains the
    offsets at which the micro-batch starts. These offsets are used instead of `start`, because after a restart Spark
    requests the initial offset again, which may have changed.
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
        return start.offsets[partition]  # if the end is lower, records were lost, and the range is empty
    begun_anew = not start.same_topic(end, partition) or end.offsets[partition] < start.offsets[partition]
    return 0 if begun_anew else start.offsets[partition]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The user's options for tasks.

    `least` is the minimum number of tasks, and `most_records` the maximum number of records in a task. `split` is
    whether the range of a partition can be divided among several tasks.
    """

    least: int | None = None
    most_records: int | None = None
    split: bool = False

    def count(self, wanted: Collection[Range], cores: int, *, slow: bool = False) -> int:
        """Return how many tasks should read the ranges on a cluster that runs `cores` tasks at a time.

        Without options, this is one task for few records, otherwise one task per core, or more if there are many
        records. If `slow` is True, handling the records takes a long time, so even a few records are divided.
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
        """Return how many tasks are needed so that no task with several partitions has more than `most` records."""
        while tasks < len(wanted):
            full = sum(len(group) > 1 and sum(item.length for item in group) > most for group in pack(wanted, tasks))
            if not full:
                break
            tasks += full
        return tasks


def divide(wanted: Iterable[Range], tasks: int, *, split: bool) -> list[list[Range]]:
    """Divide the ranges into at most `tasks` groups of about equal length. No group is empty."""
    return cut(wanted, tasks) if split else pack(wanted, tasks)


def cut(wanted: Iterable[Range], tasks: int) -> list[list[Range]]:
    """Divide the ranges into at most `tasks` groups of equal length, higher levels first. Ranges can be split."""
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
    """Divide the ranges into at most `tasks` groups that take about the same time.

    No range is split, and no group is empty.
    """
    groups: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(tasks)]
    heapify(groups)
    for item in sorted(wanted, key=attrgetter("length"), reverse=True):
        cost, number, members = groups[0]
        members.append(item)
        heapreplace(groups, (cost + item.length + RECORDS_OF_A_RANGE, number, members))
    return [members for _, _, members in sorted(groups, key=lambda group: group[1]) if members]
