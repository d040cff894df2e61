"""What a micro-batch reads: pure functions over offsets.

Invariants: a micro-batch takes no more offsets than its limit, and takes the whole limit while so many wait; a
partition's range is never split; the ranges follow from the start and end offsets alone, which Spark keeps in its
checkpoint, so that a replayed micro-batch reads exactly what it read before.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace

from headway.core.fairness import Fair
from headway.kafka.ranges import Offsets, Range
from headway.records import TopicPartition

OffsetJson = dict[str, dict[str, dict[str, int]]]
"""Offsets as they are in Spark's checkpoint: topic, level, partition."""

RECORDS_PER_TASK = 100_000
"""A wave of tasks costs about as long as it takes to read a third of these."""


def to_json(offsets: Offsets) -> OffsetJson:
    """The form for Spark's checkpoint, in one order, because Spark compares it as text.

    >>> to_json({TopicPartition("orders", 0, level=1): 7, TopicPartition("orders", 0): 5})
    {'orders': {'0': {'0': 5}, '1': {'0': 7}}}
    """
    form: OffsetJson = {}
    for topic, partition, level in sorted(offsets, key=lambda at: (at.topic, at.level, at.partition)):
        levels = form.setdefault(topic, {})
        levels.setdefault(str(level), {})[str(partition)] = offsets[TopicPartition(topic, partition, level)]
    return form


def from_json(form: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """The inverse of `to_json`."""
    return {
        TopicPartition(topic, int(partition), int(level)): offset
        for topic, levels in form.items()
        for level, partitions in levels.items()
        for partition, offset in partitions.items()
    }


def limited(start: Offsets, end: Offsets, shares: Sequence[int]) -> Offsets:
    """Where to stop so that the levels' shares are kept: what one level cannot use is lent to the others.

    The shares are indexed by level, and their sum is the limit. Within a level its partitions take turns.
    """
    levels: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(end):
        levels[partition.level].append(partition)
    backlogs = [sum(end[partition] - start[partition] for partition in levels[level]) for level in range(len(shares))]
    taken = Fair(shares).pick(backlogs, sum(shares))
    stops: Offsets = {}
    for level, count in enumerate(taken):
        stops |= _in_turns(levels[level], start, end, count)
    return stops


def _in_turns(partitions: Sequence[TopicPartition], start: Offsets, end: Offsets, count: int) -> Offsets:
    """Equal parts for all partitions that have so much, `count` in all.

    Whose turn it is follows from how much has been read before: with a count below the number of partitions none is
    passed over for ever, and nothing but the offsets need be remembered.
    """
    turn = sum(start[partition] for partition in partitions) % max(1, len(partitions))
    # Of equal claims `Fair` serves the last first.
    queue = [*partitions[turn:], *partitions[:turn]][::-1]
    parts = Fair([1] * len(queue)).pick([end[partition] - start[partition] for partition in queue], count)
    return {partition: start[partition] + part for partition, part in zip(queue, parts, strict=True)}


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """The ranges that are not empty, from one set of offsets to a later one.

    A partition that the first does not name has no range yet: it begins at the offset that the second gives it.
    """
    return [
        Range(partition, start[partition], stop)
        for partition, stop in sorted(end.items())
        if partition in start and start[partition] < stop
    ]


def task_count(records: int, cores: int) -> int:
    """How many tasks are worth their start: all cores, and more where there is much to read on a larger cluster."""
    return max(1, cores, records // RECORDS_PER_TASK)


def pack(wanted: Iterable[Range], tasks: int) -> list[list[Range]]:
    """The ranges in at most so many groups of about equal length; none is split and no group is empty."""
    groups: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(tasks)]
    heapify(groups)
    for item in sorted(wanted, key=len, reverse=True):
        length, number, members = groups[0]
        heapreplace(groups, (length + len(item), number, [*members, item]))
    return [members for _, _, members in sorted(groups, key=lambda group: group[1]) if members]
