"""One partition of a delay topic, as its relay sees it: records that were fetched but have not left, and the progress.

Invariants:
- Records leave in the order of the log.
- The progress covers only records that have left, so that the others are read again after a restart.
- `bound` is before the due time of every record that was fetched and has not left.
- `bound` is also before the due time of every record that the relay itself has written here but not fetched yet.
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

# Records leave in groups, so that few transactions concern delay topics. A record that entered its delay topic quickly
# leaves `_DUE_AFTER` or more before it is due.
LEAVES_WITHIN = 20
_DUE_AFTER = 25

# A record that entered its delay topic late leaves this long before it is due, along with all records before it.
_BELATED_LEAVES_BEFORE = 75

# A record stamped this far ahead of now was stamped before the clock was set back; waiting for its time would be wrong.
_AHEAD = 1000


class _Expected(NamedTuple):
    """Records that the relay wrote, up to `end`. Neither they nor records written after them are due by `bound`."""

    bound: int
    end: int
    until: int


class Fetched(msgspec.Struct, gc=False):
    """A fetched record: its offset, when it was appended, its size in bytes, the record itself, and its schedule.

    It is a struct, like `Held` and `Write`, because one is created per record and a named tuple takes four times as
    long.
    """

    offset: int
    appended: int
    size: int
    record: Any
    schedule: Schedule | ScheduleError


class LineWindow:
    """The fetched records that have not left the delay topic, and the progress of those that have."""

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
        "ended",
        "holds",
        "line",
        "memory",
        "progress",
    )

    def __init__(self, line: int, start: OffsetMap, memory: int) -> None:
        self.line = line
        self.memory = memory
        self.progress = Progress(start)
        self.bytes = 0
        self.ended = False  # everything in the log was fetched
        self.changed = False
        self.holds = 0  # the number of its records that wait in memory
        self._position = 0  # the offset after the last fetched record
        self._left = -math.inf  # the bound for the records that have left
        self._rests = False
        self._time = time_in(line)
        self._window: deque[Fetched] = deque()
        # Due times and offsets of records in the window that are due before their turn, both ascending. A record that
        # precedes another in the log, and is not due before it, leaves together with it.
        self._belated: deque[tuple[int, int]] = deque()
        # Both bounds and ends ascend: a later entry with a lower bound replaces earlier ones.
        self._expected: deque[_Expected] = deque()

    def receive(self, records: Sequence[Fetched]) -> None:
        """Take in fetched records, in the order of the log."""
        self.ended = False
        self._window.extend(records)
        self._has_come(records[-1].offset + 1)
        self.bytes += sum(record.size for record in records)
        if self.line != MEMORY:
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
        """Record that everything in the log up to this offset was fetched."""
        self.ended = True
        self._has_come(offset)

    def expect(self, bound: int, end: int, until: int) -> None:
        """Hold back records due after `bound` until all before the offset `end` were fetched, or until `until`.

        This is needed because a transaction's records cannot be read before its commit, nor can records after them.
        """
        while self._expected and self._expected[-1].bound >= bound:
            self._expected.pop()
        self._expected.append(_Expected(bound, end, until))
        self._has_come(self._position)

    def expect_no_longer(self, now: int) -> None:
        """Stop waiting for expected records that did not arrive in time."""
        while self._expected and self._expected[0].until < now:
            self._expected.popleft()

    @property
    def expects_until(self) -> float:
        """When the first expected records are no longer waited for; infinite if none are expected."""
        return self._expected[0].until if self._expected else math.inf

    def _has_come(self, position: int) -> None:
        self._position = position
        while self._expected and self._expected[0].end <= position:
            self._expected.popleft()

    def wants(self, spare: int = 0) -> bool:
        """Return whether to fetch more: until the window is full, and then again once it is half empty.

        In addition to its own space, the window may use four fifths of the space that all delay topics share, of which
        `spare` is free now.
        """
        space = self.memory + 4 * max(0, spare)
        self._rests = self.bytes >= (space // 2 if self._rests else space)
        return not self._rests

    @property
    def head(self) -> Fetched | None:
        """The record that leaves next, if it was fetched."""
        return self._window[0] if self._window else None

    def leaves_at(self, now: int) -> float:
        """Return when the first record may leave; infinite if there is none."""
        if not self._window:
            return math.inf
        appended = self._window[0].appended
        if appended > now + _AHEAD:
            return -math.inf
        turn = appended + self._time
        return min(turn, self._belated[0][0] - _BELATED_LEAVES_BEFORE) if self._belated else turn

    @property
    def bound(self) -> float:
        """A time by which no record still in this delay topic is due, as far as it was fetched or stored in time.

        For the delay topic that is read at once, it covers only the records that the relay itself has written.
        """
        expected = self._expected[0].bound if self._expected else math.inf
        return expected if self.line == MEMORY else min(expected, self._bound_of_fetched)

    @property
    def _bound_of_fetched(self) -> float:
        if self._window:
            bound = self._window[0].appended + self._time + _DUE_AFTER
            return min(bound, self._belated[0][0] - 1) if self._belated else bound
        return math.inf if self.ended else self._left

    def leave(self, until: float, now: int, most: int, most_bytes: float) -> list[Fetched]:
        """Let the first records leave that may at `until`, up to about this many records and bytes.

        Returns those that still need handling; the others were handled before a restart.
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
        """Return the offset up to which all records must leave, so that due records can."""
        last = -1
        for due, offset in self._belated:
            if due - _BELATED_LEAVES_BEFORE > until:
                break
            last = offset
        return last

    def complete(self, offset: int) -> None:
        """Record that a record that left was moved, delivered or dropped."""
        self.changed = True
        self.progress.complete(offset)


def bound_behind(line: int, due: int, written: int) -> int:
    """Return a time by which neither a record written to a delay topic at `written`, nor any record after it, is due.

    In a delay topic this follows from the time of writing. The delay topic for immediate reading (`MEMORY`) has no
    delay: there a later record can be due at any time, but need not be delivered before this one, so this one's due
        time is
    the bound.
    """
    return due - 1 if line == MEMORY else written + time_in(line) + _DUE_AFTER
