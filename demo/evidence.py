"""What the consumer saw of each level, and whether it is what was promised.

Pure: time comes with the records, and nothing here knows Kafka.
"""

from array import array
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NUMBER = "number"
"""The header that says as which record of all it was sent."""

# Work conservation, less what it takes to notice that something has come.
LEAST_USED = 0.95


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
    """What was promised and what was seen; `kept` is None where the policy does not promise it."""

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


class Evidence:
    """Of every record when it was returned and how long it had waited, in arrays: records would fill the memory."""

    def __init__(self, levels: int, records: int, capacity: int) -> None:
        self.capacity = capacity
        self.returned_s = [array("d") for _ in range(levels)]  # since the start
        self.waits_ms = [array("q") for _ in range(levels)]  # from the producer's timestamp to the return of poll
        self.partitions, self.keys = Order(), Order()
        self.polls = self.largest_poll = 0
        self._times_seen = bytearray(records)
        self._offered = self._used = 0

    @property
    def per_level(self) -> list[int]:
        """How many records of each level were returned, lowest first."""
        return list(map(len, self.waits_ms))

    @property
    def total(self) -> int:
        """How many records were returned."""
        return sum(self.per_level)

    @property
    def capacity_used(self) -> float:
        """The part of the capacity that was used by the polls for which as much or more was waiting."""
        return self._used / self._offered if self._offered else 1.0

    @property
    def repeated(self) -> int:
        """How many records were returned more than once."""
        return sum(times > 1 for times in self._times_seen)

    def note_poll(self, records: Collection[Record], backlog: int, at: float, now_ms: int) -> None:
        """Take a poll into account; `backlog` is how many records waited before it, `at` is since the start."""
        self.polls += 1
        self.largest_poll = max(self.largest_poll, len(records))
        if backlog >= self.capacity:
            self._offered += self.capacity
            self._used += len(records)
        for record in records:
            self._note(record, at, now_ms)

    def _note(self, record: Record, at: float, now_ms: int) -> None:
        level, key, number = record.level, record.raw_key, int(dict(record.headers)[NUMBER])
        self.returned_s[level].append(at)
        self.waits_ms[level].append(max(0, now_ms - record.timestamp))
        self.partitions.note((level, record.partition), record.offset)
        if key is not None:  # without one, no order is promised
            self.keys.note((level, key), number)
        self._times_seen[number] = min(2, self._times_seen[number] + 1)


def percentile(values: Sequence[int], percent: float) -> int:
    """The value that so many percent of the values are not above; 0 of none.

    >>> percentile([30, 10, 20], 50), percentile([30, 10, 20], 99), percentile([], 50)
    (20, 30, 0)
    """
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))] if ranked else 0


def promises(evidence: Evidence, sent: Sequence[int], *, conserves_work: bool) -> list[Promise]:
    """What Headway promises of this run. `sent` is by level; `conserves_work` is whether the policy does."""
    used = evidence.capacity_used
    polls = f"{evidence.largest_poll} of {evidence.capacity} at most, in {evidence.polls:,} polls"
    return [
        _every_record_once(evidence, sent),
        _in_order("each partition in the order of its offsets", evidence.partitions, "partitions"),
        _in_order("the flights of an aeroplane in order, by level", evidence.keys, "lanes"),
        _high_before_low(evidence),
        Promise("no poll returns more than max.poll.records", polls, evidence.largest_poll <= evidence.capacity),
        Promise(
            f"over {LEAST_USED:.0%} of the capacity used under backlog",
            f"{used:.1%}",
            used > LEAST_USED if conserves_work else None,
        ),
    ]


def _every_record_once(evidence: Evidence, sent: Sequence[int]) -> Promise:
    counts = " + ".join(
        f"{got:,}" if got == wanted else f"{got:,} of {wanted:,}"
        for got, wanted in zip(reversed(evidence.per_level), reversed(sent), strict=True)
    )
    repeated = f", {evidence.repeated:,} more than once" if evidence.repeated else ""
    return Promise("every flight once, at its level", counts + repeated, not repeated and evidence.per_level == [*sent])


def _in_order(promised: str, order: Order, lanes: str) -> Promise:
    return Promise(promised, f"{order.violations:,} violations in {len(order):,} {lanes}", order.violations == 0)


def _high_before_low(evidence: Evidence) -> Promise:
    high, low = percentile(evidence.waits_ms[-1], 99), percentile(evidence.waits_ms[0], 50)
    seen = f"level 2 p99 {high:,} ms, level 0 p50 {low:,} ms"
    return Promise("what is urgent does not wait for what is not", seen, high < low)
