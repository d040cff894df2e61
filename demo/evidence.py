"""What the consumer saw of each level, and whether it is what was promised.

Pure: time comes with the records, and nothing here knows Kafka.
"""

from array import array
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NUMBER = "number"
"""The header that says as which record of all it was sent."""

BACKLOG_POLLS = 10
"""A backlog is what so many polls can return, or more. Only under backlog can priority be seen, however fast all is."""

# Work conservation, less what it takes to notice that something has come.
LEAST_USED = 0.95

# A stop of the whole machine delays neighbours alike. What is left is what the partitions of a level do to each other.
LEAST_AHEAD = 0.95
_NEVER = -1
_FEWEST = 10  # records, or polls: of fewer, a share says nothing


class Record(Protocol):
    """What is looked at of a consumed record."""

    @property
    def level(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def raw_key(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Sequence[tuple[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Promise:
    """What was promised and what was seen; `kept` is None where this run cannot tell, and `seen` says why."""

    promised: str
    seen: str
    kept: bool | None


class Order:
    """Counts the records that come behind a later one of their lane."""

    def __init__(self) -> None:
        self.violations = 0
        self._last: dict[Hashable, int] = {}

    def note(self, lane: Hashable, number: int) -> None:
        """Take the next record of a lane into account."""
        self.violations += number <= self._last.get(lane, -1)
        self._last[lane] = number

    def __len__(self) -> int:
        """How many lanes there are."""
        return len(self._last)


@dataclass(frozen=True, slots=True)
class Part:
    """So many of so many, of what could be counted."""

    count: int
    of: int

    @property
    def share(self) -> float:
        """The share of the whole, 1 of nothing."""
        return self.count / self.of if self.of else 1.0


class Evidence:
    """Of every record when it was returned and how long it had waited, in arrays: records would fill the memory."""

    def __init__(self, levels: int, records: int, capacity: int) -> None:
        self.capacity = capacity
        self.returned_s = [array("d") for _ in range(levels)]  # since the start
        self.waits_ms = [array("q") for _ in range(levels)]  # from the producer's timestamp to the return of poll
        self.partitions, self.keys = Order(), Order()
        self.polls = self.largest_poll = self.repeated = 0  # repeated: how many records were returned once more
        self.poll_of = array("l", [_NEVER]) * records
        self.level_of = bytearray(records)
        self.under_backlog = bytearray()  # by poll
        self._returned_under_backlog = 0

    @property
    def per_level(self) -> list[int]:
        """How many records of each level were returned, lowest first."""
        return list(map(len, self.waits_ms))

    @property
    def total(self) -> int:
        """How many records were returned."""
        return sum(self.per_level)

    @property
    def capacity_used(self) -> Part:
        """Of the records that the polls under backlog had room for, those that they returned."""
        return Part(self._returned_under_backlog, sum(self.under_backlog) * self.capacity)

    @property
    def ahead(self) -> Part:
        """Of the highest level's records that met a backlog, those that passed their neighbour of the lowest level.

        The neighbour is the record of the lowest level that was sent last before. Whatever delays both, a slow machine
        or a broker that pauses, does not count: without priority, the one that was sent first is returned first.
        """
        highest, met, passed, neighbour = len(self.waits_ms) - 1, 0, 0, _NEVER
        for level, poll in zip(self.level_of, self.poll_of, strict=True):
            if poll == _NEVER:
                continue
            if level == 0:
                neighbour = poll
            elif level == highest and neighbour != _NEVER and self.under_backlog[poll]:
                met += 1
                passed += poll < neighbour
        return Part(passed, met)

    def note_poll(self, records: Collection[Record], backlog: int, at: float, now_ms: int) -> None:
        """Take a poll into account; `backlog` is how many records waited before it, `at` is since the start."""
        under_backlog = backlog >= BACKLOG_POLLS * self.capacity
        self.under_backlog.append(under_backlog)
        self._returned_under_backlog += under_backlog * len(records)
        self.largest_poll = max(self.largest_poll, len(records))
        for record in records:
            self._note(record, at, now_ms)
        self.polls += 1

    def _note(self, record: Record, at: float, now_ms: int) -> None:
        level, key, number = record.level, record.raw_key, int(dict(record.headers)[NUMBER])
        self.returned_s[level].append(at)
        self.waits_ms[level].append(max(0, now_ms - record.timestamp))
        self.partitions.note((level, record.partition), record.offset)
        if key is not None:  # without one, no order is promised
            self.keys.note((level, key), number)
        if self.poll_of[number] == _NEVER:
            self.poll_of[number], self.level_of[number] = self.polls, level
        else:
            self.repeated += 1


def percentile(values: Sequence[int], percent: float) -> int:
    """The value that so many percent of the values are not above; 0 of none.

    >>> percentile([30, 10, 20], 50), percentile([30, 10, 20], 99), percentile([], 50)
    (20, 30, 0)
    """
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))] if ranked else 0


def promises(evidence: Evidence, sent: Sequence[int], *, conserves_work: bool) -> list[Promise]:
    """What Headway promises of this run. `sent` is by level; `conserves_work` is whether the policy does."""
    polls = f"{evidence.largest_poll} of {evidence.capacity} at most, in {evidence.polls:,} polls"
    return [
        _every_record_once(evidence, sent),
        _in_order("each partition in order of its offsets", evidence.partitions, "partitions"),
        _in_order("flights of a plane in order, by level", evidence.keys, "lanes"),
        _high_before_low(evidence.ahead),
        Promise("no poll above max.poll.records", polls, evidence.largest_poll <= evidence.capacity),
        _capacity_used(evidence, promised=conserves_work),
    ]


def _every_record_once(evidence: Evidence, sent: Sequence[int]) -> Promise:
    counts = " + ".join(
        f"{got:,}" if got == wanted else f"{got:,} of {wanted:,}"
        for got, wanted in zip(reversed(evidence.per_level), reversed(sent), strict=True)
    )
    repeated = f", {evidence.repeated:,} again" if evidence.repeated else ""
    return Promise("every flight once, at its level", counts + repeated, not repeated and evidence.per_level == [*sent])


def _in_order(promised: str, order: Order, lanes: str) -> Promise:
    return Promise(promised, f"{order.violations:,} violations in {len(order):,} {lanes}", order.violations == 0)


def _high_before_low(ahead: Part) -> Promise:
    promised = "urgent flights pass those on time"
    if ahead.of < _FEWEST:
        return Promise(promised, f"not shown: only {ahead.of} met a backlog", None)
    seen = f"{ahead.share:.1%} of {ahead.of:,} that met a backlog"
    return Promise(promised, seen, ahead.share > LEAST_AHEAD)


def _capacity_used(evidence: Evidence, *, promised: bool) -> Promise:
    used = evidence.capacity_used
    name = f"over {LEAST_USED:.0%} of capacity used in a backlog"
    if used.of < _FEWEST * evidence.capacity:
        return Promise(name, "not shown: there was no backlog", None)
    if not promised:
        return Promise(name, f"{used.share:.1%}, as this policy may", None)
    return Promise(name, f"{used.share:.1%}", used.share > LEAST_USED)
