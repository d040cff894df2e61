"""Computes the end of the next micro-batch by applying the policies of the priority consumer to offsets.

Invariants: a micro-batch takes no more offsets than its limit; `fair` and `strict` use the whole limit if enough
records are waiting. Spark's checkpoint holds each decision, so a replay does not need the state of this module.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from itertools import pairwise

from headway.core.levels.fair import Fair
from headway.core.levels.policies import Policy
from headway.kafka.reading.range_reader import Offsets
from headway.records.record_types import TopicPartition

# These three limit the number of sightings in `Sightings`.
_DENSE = 32  # all sightings up to this many spacings old are kept
_PART_OF_AGE = 8  # of older sightings, about one per (age / this number) is kept
_SIGHTINGS = 128  # the maximum number of sightings


class Sightings:
    """Remembers the end offsets that partitions had at past times, which show how long a record has been waiting.

    A record whose offset is below the end offset at some time has been waiting at least since then. A sighting is made
    every `spacing` seconds. Sightings up to 32 spacings old are all kept. Older ones are thinned out to about one per
    eighth of their age, and only the last 128 are kept. So waits of days can be measured, and are at most an eighth too
    short.
    """

    def __init__(self, spacing: float = 0) -> None:
        self._spacing = spacing
        self._ends: deque[tuple[float, Offsets]] = deque(maxlen=_SIGHTINGS)
        self._partitions: dict[TopicPartition, TopicPartition] = {}  # one object per partition, shared by all sightings

    def note(self, ends: Offsets, now: float) -> None:
        """Record the end offsets of the partitions at the time `now`, unless the last sighting is too recent."""
        if not self._ends or now - self._ends[-1][0] >= self._spacing:
            self._thin_out(now)
            own = self._partitions
            self._ends.append((now, {own.setdefault(at, at): offset for at, offset in ends.items()}))

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the end offsets of these partitions, because their offsets have started again."""
        for _, ends in self._ends:
            for each in partitions:
                ends.pop(each, None)

    def _thin_out(self, now: float) -> None:
        """Drop old sightings that are close to the sightings before and after them, relative to their age."""
        times = [seen for seen, _ in self._ends]
        kept = times[:1]
        for seen, following in pairwise(times[1:]):
            age = now - seen
            if age < _DENSE * self._spacing or following - kept[-1] > age / _PART_OF_AGE:
                kept.append(seen)
        if len(kept) + 1 < len(times):
            wanted = {*kept, times[-1]}
            self._ends = deque((each for each in self._ends if each[0] in wanted), maxlen=_SIGHTINGS)

    def before(self, time: float) -> Offsets:
        """Return the end offsets of the partitions at the last sighting before a time."""
        return next((ends for seen, ends in reversed(self._ends) if seen < time), {})

    def first_beyond(self, offsets: Offsets) -> float | None:
        """Return the time of the first sighting at which any partition ended beyond its given offset, or None."""
        return next(
            (seen for seen, ends in self._ends if any(ends.get(at, 0) > offset for at, offset in offsets.items())), None
        )


def longest_waits(sightings: Sightings, reached: Offsets, end: Offsets, now: float) -> dict[int, float]:
    """Return how many seconds the first record from `reached` to `end` has been waiting, for each level that has any.

    >>> at, sightings = TopicPartition("orders", partition=0, level=2), Sightings()
    >>> sightings.note({at: 5}, now=10.0)
    >>> longest_waits(sightings, {at: 3}, {at: 5}, now=12.0)
    {2: 2.0}
    """
    unread: dict[int, Offsets] = defaultdict(dict)
    for at, stop in end.items():
        if reached[at] < stop:
            unread[at.level][at] = reached[at]
    since = {level: sightings.first_beyond(unread[level]) for level in sorted(unread)}
    return {level: 0.0 if seen is None else now - seen for level, seen in since.items()}


class Unread:
    """The waiting records of one level, in the form that a policy takes: at most `count` offsets from `start` on."""

    def __init__(self, start: Offsets, count: int, sightings: Sightings) -> None:
        self._start = start
        self._count = count
        self._sightings = sightings

    def __len__(self) -> int:
        return self._count

    def count_from_before(self, time: float) -> int:
        """Return how many of the records were seen before a time."""
        ends = self._sightings.before(time)
        return min(self._count, sum(max(0, ends.get(at, 0) - offset) for at, offset in self._start.items()))

    def oldest(self) -> float | None:
        """Return when the first record was first seen."""
        return self._sightings.first_beyond(self._start)


class LevelSplit:
    """A policy, and its memory from one micro-batch to the next. `capacity` is the limit of one micro-batch."""

    def __init__(self, policy: Policy, levels: int, capacity: int, sightings: Sightings) -> None:
        self._policy = policy
        self._levels = levels
        self._capacity = capacity
        self._sightings = sightings

    def stops(self, start: Offsets, end: Offsets, now: float, limit: int | None = None) -> Offsets:
        """Return the end offsets of a micro-batch. The policy decides how the levels share the capacity.

        The partitions of a level take turns.

        Args:
            start: The offset at which the micro-batch starts in each partition.
            end: The offset up to which each partition can be read. `end` has the same partitions as `start`.
            now: The time in seconds.
            limit: The limit of this micro-batch, if it is smaller than the capacity.
        """
        self._sightings.note(end, now)
        levels = _by_level(end, self._levels)
        taken = self._policy.split(self._found(levels, start, end), limit or self._capacity, now)
        stops: Offsets = {}
        for partitions, count in zip(levels, taken, strict=True):
            stops |= _in_turns(partitions, start, end, count)
        return stops

    def _found(self, levels: Sequence[Sequence[TopicPartition]], start: Offsets, end: Offsets) -> list[Unread]:
        """Return the waiting records of each level, but at most as many as the policy demands."""
        demand = self._policy.demand([Unread({}, 0, self._sightings)] * self._levels)
        return [
            Unread(
                {at: start[at] for at in partitions},
                min(most, sum(end[at] - start[at] for at in partitions)),
                self._sightings,
            )
            for partitions, most in zip(levels, demand, strict=True)
        ]


def _by_level(partitions: Offsets, levels: int) -> list[list[TopicPartition]]:
    found: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        found[partition.level].append(partition)
    return [found[level] for level in range(levels)]


def _in_turns(partitions: Sequence[TopicPartition], start: Offsets, end: Offsets, count: int) -> Offsets:
    """Return the end offsets for `count` records, which are divided equally among partitions that have enough.

    The number of offsets that were read before decides which partition comes first. So even if `count` is below the
    number of partitions, all partitions take turns, and no state other than the offsets is needed.
    """
    turn = sum(start[partition] for partition in partitions) % max(1, len(partitions))
    # If several partitions are entitled to the next record, `Fair` gives it to the last of them. So reverse the queue.
    queue = [*partitions[turn:], *partitions[:turn]][::-1]
    parts = Fair([1] * len(queue)).pick([end[partition] - start[partition] for partition in queue], count)
    return {partition: start[partition] + part for partition, part in zip(queue, parts, strict=True)}
