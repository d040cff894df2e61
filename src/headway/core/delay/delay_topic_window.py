"""One partition of a delay topic: the fetched records that have not left yet, and the relay's progress.

A record *leaves* when the relay takes it out of the window to move it, deliver it or hold it in memory.

Invariants:
- Records leave in the order of the log.
- The progress covers only records that have left, so that all other records are read again after a restart.
- `bound` is before the due time of every record that was fetched and has not left.
- `bound` is also before the due time of every record that the relay has written to this partition and not fetched yet.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.ladder import MEMORY, time_in
from headway.core.delay.schedule import Schedule
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.progress import Progress
from headway.errors import ScheduleError

# Records leave in groups, at most `LEAVES_WITHIN` milliseconds late, so that one transaction handles many of them. A
# record that entered its delay topic quickly leaves it at least `_DUE_AFTER` milliseconds before it is due.
LEAVES_WITHIN = 20
_DUE_AFTER = 25

# How long before its due time a record leaves if it entered its delay topic late, in milliseconds. All records before
# it in the log leave at the same time.
_BELATED_LEAVES_BEFORE = 75

# How far in the future a record's timestamp must be, in milliseconds, to show that the clock was set back after the
# record was appended. Such a record leaves at once.
_AHEAD = 1000


class _Expected(NamedTuple):
    """Records that the relay has written and not fetched yet, up to the offset `end`.

    The time `bound` is before the due times of these records and of all records written after them. The relay expects
    these records until the time `until`.
    """

    bound: int
    end: int
    until: int


class Fetched(msgspec.Struct, gc=False):
    """A fetched record, with its offset, the time when it was appended, its size in bytes, and its schedule.

    `Fetched`, `Held` and `Write` are structs because one is created for each record. Creating a named tuple takes four
    times as long.
    """

    offset: int
    appended: int
    size: int
    record: Any
    schedule: Schedule | ScheduleError


class DelayTopicWindow:
    """The fetched records that have not left the delay topic, and the progress of those that have left."""

    __slots__ = (
        "_belated",
        "_expected",
        "_left",
        "_position",
        "_rests",
        "_time",
        "_window",
        "bytes",
        "changed",
        "delay_topic",
        "ended",
        "holds",
        "memory",
        "progress",
    )

    def __init__(self, delay_topic: int, start: OffsetMap, memory: int) -> None:
        self.delay_topic = delay_topic
        self.memory = memory
        self.progress = Progress(start)
        self.bytes = 0
        self.ended = False  # True if all records in the log have been fetched
        self.changed = False  # True if the progress must be stored
        self.holds = 0  # the number of this topic's records that wait in memory
        self._position = 0  # the offset after the last fetched record
        self._left = -math.inf  # all records behind those that have left are due later than this
        self._rests = False
        self._time = time_in(delay_topic)
        self._window: deque[Fetched] = deque()
        # The due times and offsets of records in the window that must leave early to be delivered in time. Both the
        # times and the offsets ascend: a record is not listed if a later record in the log is due at the same time or
        # sooner, because both records leave together.
        self._belated: deque[tuple[int, int]] = deque()
        # The bounds and the ends ascend, because a new entry replaces all earlier entries whose bound is the same or
        # higher.
        self._expected: deque[_Expected] = deque()

    def receive(self, records: Sequence[Fetched]) -> None:
        """Add fetched records to the window, in the order of the log."""
        self.ended = False
        self._window.extend(records)
        self._has_come(records[-1].offset + 1)
        self.bytes += sum(record.size for record in records)
        if self.delay_topic != MEMORY:
            self._look_for_belated(records)

    def _look_for_belated(self, records: Sequence[Fetched]) -> None:
        belated, least = self._belated, self._time + _DUE_AFTER
        for record in records:
            schedule = record.schedule
            if isinstance(schedule, Schedule) and schedule.due - record.appended <= least:
                while belated and belated[-1][0] >= schedule.due:
                    belated.pop()
                belated.append((schedule.due, record.offset))

    def reached_end(self, offset: int) -> None:
        """Record that all records below this offset, the end of the log, have been fetched."""
        self.ended = True
        self._has_come(offset)

    def expect(self, bound: int, end: int, until: int) -> None:
        """Hold back records due after `bound` until all records below the offset `end` are fetched, or until `until`.

        This is needed because the records of a transaction, and all records after them, cannot be read before the
        transaction is committed.
        """
        while self._expected and self._expected[-1].bound >= bound:
            self._expected.pop()
        self._expected.append(_Expected(bound, end, until))
        self._has_come(self._position)

    def expect_no_longer(self, now: int) -> None:
        """Stop waiting for expected records that were not fetched in time."""
        while self._expected and self._expected[0].until < now:
            self._expected.popleft()

    @property
    def expects_until(self) -> float:
        """When the wait for the first expected records ends; infinite if no records are expected."""
        return self._expected[0].until if self._expected else math.inf

    def _has_come(self, position: int) -> None:
        self._position = position
        while self._expected and self._expected[0].end <= position:
            self._expected.popleft()

    def wants(self, spare: int = 0) -> bool:
        """Return whether to fetch more records.

        Fetching stops when the window is full, and resumes when it is half empty.

        In addition to its own space, the window may use four fifths of the space that all delay topics share. `spare`
        bytes of the shared space are free now.
        """
        space = self.memory + 4 * max(0, spare)
        self._rests = self.bytes >= (space // 2 if self._rests else space)
        return not self._rests

    @property
    def held(self) -> int:
        """The number of fetched records that have not been delivered or moved."""
        return len(self._window) + self.holds

    @property
    def position(self) -> int:
        """The offset after the last record that was fetched, or that was handled before a restart."""
        return max(self._position, self.progress.end)

    @property
    def head(self) -> Fetched | None:
        """The record that leaves next, or None if no record is in the window."""
        return self._window[0] if self._window else None

    def leaves_at(self, now: int) -> float:
        """Return when the first record may leave; infinite if the window is empty."""
        if not self._window:
            return math.inf
        appended = self._window[0].appended
        if appended > now + _AHEAD:
            return -math.inf
        turn = appended + self._time
        return min(turn, self._belated[0][0] - _BELATED_LEAVES_BEFORE) if self._belated else turn

    @property
    def bound(self) -> float:
        """A time before the due time of every record that is still in this delay topic.

        Records that were stored late are not covered until they have been fetched. In the memory topic, only records
        that the relay itself has written are covered.
        """
        expected = self._expected[0].bound if self._expected else math.inf
        return expected if self.delay_topic == MEMORY else min(expected, self._bound_of_fetched)

    @property
    def _bound_of_fetched(self) -> float:
        if self._window:
            bound = self._window[0].appended + self._time + _DUE_AFTER
            return min(bound, self._belated[0][0] - 1) if self._belated else bound
        return math.inf if self.ended else self._left

    def leave(self, until: float, now: int, most: int, most_bytes: float) -> list[Fetched]:
        """Remove the first records that may leave by the time `until`, and return those that the relay must handle.

        The other removed records were already handled before a restart. The call stops after about `most` records or
        `most_bytes` bytes.
        """
        window, latest, ahead, belated = self._window, until - self._time, now + _AHEAD, self._last_belated(until)
        left: list[Fetched] = []
        size = 0
        while window and len(left) < most and size < most_bytes:
            first = window[0]
            if latest < first.appended <= ahead and first.offset > belated:
                break
            left.append(window.popleft())
            size += left[-1].size
        if not left:
            return left
        self.bytes -= size
        self.changed = True
        while self._belated and self._belated[0][1] <= left[-1].offset:
            self._belated.popleft()
        self._left = max(self._left, max(record.appended for record in left) + self._time + _DUE_AFTER)
        offsets = [record.offset for record in left]
        fresh = self.progress.receive(offsets)
        if len(fresh) == len(left):
            return left
        wanted = set(fresh)
        return [record for record in left if record.offset in wanted]

    def _last_belated(self, until: float) -> int:
        """Return the offset of the last belated record that will soon be due, or -1.

        All records up to this offset must leave.
        """
        last = -1
        for due, offset in self._belated:
            if due - _BELATED_LEAVES_BEFORE > until:
                break
            last = offset
        return last

    def complete(self, offset: int) -> None:
        """Record that a record which has left was moved, delivered or dropped."""
        self.changed = True
        self.progress.complete(offset)


def bound_behind(delay_topic: int, due: int, written: int) -> int:
    """Return a time before the due time of a record written to a delay topic at `written`, and of each record after it.

    In all delay topics except the memory topic, the bound follows from the time of writing. In the memory topic
    (`MEMORY`), a later record can be due at any time, but does not have to be delivered before this record. So the
    bound in the memory topic is one millisecond before this record's due time.
    """
    return due - 1 if delay_topic == MEMORY else written + time_in(delay_topic) + _DUE_AFTER
