"""Records what the consumer saw of each level, and checks it against the promises.

Pure: time comes with the records, and nothing here knows Kafka.
"""

from array import array
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NUMBER = "number"
"""The header with the number of the record, in the order of sending."""

BACKLOG_POLLS = 10
"""A backlog is at least as many records as this many polls can return. Priority shows only under a backlog."""

# Below 1, because new records take a moment to be noticed.
LEAST_USED = 0.95

# Below 1, because the partitions of a level delay each other. A pause of the machine delays neighbouring records alike.
LEAST_AHEAD = 0.95
_NEVER = -1
_FEWEST = 10  # records, or polls; a fraction of fewer means nothing


class Record(Protocol):
    """The fields of a consumed record that the evidence needs."""

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
    """A promise and what was seen. `kept` is None if this run cannot decide, and `seen` then says why."""

    promised: str
    seen: str
    kept: bool | None


class Order:
    """Counts the records that arrive after a later record of their lane."""

    def __init__(self) -> None:
        self.violations = 0
        self._last: dict[Hashable, int] = {}

    def note(self, lane: Hashable, number: int) -> None:
        """Count the next record of a lane."""
        self.violations += number <= self._last.get(lane, -1)
        self._last[lane] = number

    def __len__(self) -> int:
        """The number of lanes."""
        return len(self._last)


@dataclass(frozen=True, slots=True)
class Part:
    """A count out of a total."""

    count: int
    of: int

    @property
    def share(self) -> float:
        """The fraction of the total, or 1 if the total is 0."""
        return self.count / self.of if self.of else 1.0


class Evidence:
    """When each record was returned and how long it had waited, in arrays: the records would fill the memory."""

    def __init__(self, levels: int, records: int, capacity: int) -> None:
        self.capacity = capacity
        self.returned_s = [array("d") for _ in range(levels)]  # since the start
        self.waits_ms = [array("q") for _ in range(levels)]  # from the producer's timestamp to the return of poll
        self.partitions, self.keys = Order(), Order()
        self.polls = self.largest_poll = self.repeated = 0  # repeated: records that were returned again
        self.poll_of = array("l", [_NEVER]) * records
        self.level_of = bytearray(records)
        self.under_backlog = bytearray()  # by poll
        self._returned_under_backlog = 0

    @property
    def per_level(self) -> list[int]:
        """The number of returned records by level, lowest first."""
        return list(map(len, self.waits_ms))

    @property
    def total(self) -> int:
        """The number of returned records."""
        return sum(self.per_level)

    @property
    def capacity_used(self) -> Part:
        """The returned records, out of all that the polls under backlog could have returned."""
        return Part(self._returned_under_backlog, sum(self.under_backlog) * self.capacity)

    @property
    def ahead(self) -> Part:
        """The records of the highest level that overtook their neighbour of the lowest, of those that met a backlog.

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
        """Count a poll. `backlog` is the number of records that waited before it, `at` the seconds since the start."""
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
        if key is not None:  # without a key, no order is promised
            self.keys.note((level, key), number)
        if self.poll_of[number] == _NEVER:
            self.poll_of[number], self.level_of[number] = self.polls, level
        else:
            self.repeated += 1


def percentile(values: Sequence[int], percent: float) -> int:
    """The value that is not exceeded by this percentage of the values, or 0 if there are no values.

    >>> percentile([30, 10, 20], 50), percentile([30, 10, 20], 99), percentile([], 50)
    (20, 30, 0)
    """
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))] if ranked else 0


def promises(evidence: Evidence, sent: Sequence[int], *, conserves_work: bool) -> list[Promise]:
    """Check the promises for this run. `sent` is by level; `conserves_work` is True if the policy conserves work."""
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
