"""The ranges of a micro-batch and its tasks: pure functions over offsets.

Invariants: a partition's range is never split; ranges and tasks follow from the start and the end alone, which Spark
keeps in its checkpoint. So a replayed micro-batch reads exactly what it read before, in the same tasks, on any machine.
The sink relies on it: it knows by a task's number which rows it has written.
"""

from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heapreplace
from operator import attrgetter

from headway.kafka.reading.range_reader import Range
from headway.records import TopicPartition
from headway.spark.source.stream_offset import StreamOffset

RECORDS_PER_TASK = 100_000
"""The records for which one more task pays: a wave of tasks costs about the time to read a third of them."""

RECORDS_FOR_ONE = 1_000
"""The records up to which one task reads all sooner than two have started."""


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
    begun_anew = not start.same_topic(end, partition) or end.offsets[partition] < start.offsets[partition]
    return 0 if begun_anew else start.offsets[partition]


def task_count(records: int, cores: int) -> int:
    """Return how many tasks are worth their start: one for few records, then all cores, and more on a large cluster."""
    return 1 if records <= RECORDS_FOR_ONE else max(cores, records // RECORDS_PER_TASK)


def pack(wanted: Iterable[Range], tasks: int) -> list[list[Range]]:
    """Return the ranges in at most `tasks` groups of about equal length; none is split and no group is empty."""
    groups: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(tasks)]
    heapify(groups)
    for item in sorted(wanted, key=attrgetter("length"), reverse=True):
        length, number, members = groups[0]
        heapreplace(groups, (length + item.length, number, [*members, item]))
    return [members for _, _, members in sorted(groups, key=lambda group: group[1]) if members]
