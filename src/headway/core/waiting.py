"""Records that wait in memory until they are due, and how little has to be stored to find them again.

Most of them come from the line that is read at once. Of that line it is stored which record was delivered last in the
order of delivery, and which offsets were there: all that come before it in that order are delivered, but for those
that came late and are named. An offset map would name every gap, a thousand times a second.

Invariants: records are given in the order of (due, scheduled at, order, offset); the bytes are those of what waits.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from headway.core.delay_lines import MEMORY
from headway.core.line import Fetched, Line
from headway.core.schedules import Schedule

Key = tuple[int, int, int, int]

_FIRST: Key = (-1, -1, -1, -1)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What is delivered of the line that is read at once.

    Everything below `offset`; and of the offsets below `end`, the records up to the key `last` without the `late` ones.
    """

    offset: int = 0
    end: int = 0
    last: Key = _FIRST
    late: tuple[int, ...] = ()

    def has_delivered(self, schedule: Schedule, offset: int) -> bool:
        """Whether a record of that line is delivered."""
        return offset < self.end and _key(schedule, offset) <= self.last and offset not in self.late


class Held(NamedTuple):
    """A record that waits in memory, and where it came from."""

    schedule: Schedule
    fetched: Fetched
    line: Line


class Waiting:
    """What waits in memory, the next to be delivered first."""

    def __init__(self, mark: Mark, own: Line) -> None:
        self.bytes = 0
        self._own = own
        self._restored = mark
        self._last = mark.last
        self._late: set[int] = set()
        self._heap: list[tuple[int, int, int, int, int, Held]] = []  # its key, its line and itself
        self._removed: set[tuple[int, int]] = set()  # lines and offsets of what is in the heap and waits no more
        self._by_id: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed)

    @property
    def is_restored(self) -> bool:
        """Whether all is here again that was before a restart; until then nothing may be taken."""
        return self._own.ended or self._own.progress.end >= self._restored.end

    def was_delivered(self, schedule: Schedule, fetched: Fetched) -> bool:
        """Whether a record of the own line was delivered before a restart."""
        return self._restored.has_delivered(schedule, fetched.offset)

    def add(self, held: Held) -> None:
        """A record begins to wait."""
        schedule, fetched, line = held
        offset = fetched.offset
        if line is self._own and _key(schedule, offset) <= self._last:
            self._late.add(offset)
        line.holds += 1
        self.bytes += fetched.size
        self._by_id[schedule.id] = held
        heappush(self._heap, (schedule.due, schedule.at, schedule.order, offset, line.line, held))

    def get(self, id_: str) -> Held | None:
        """The record of a schedule, if it waits here."""
        return self._by_id.get(id_)

    @property
    def first_due(self) -> int | None:
        """When the first one is due."""
        heap = self._heap
        while self._removed and heap and _place(heap[0][-1]) in self._removed:
            self._removed.discard(_place(heappop(heap)[-1]))
        return heap[0][0] if heap else None

    def take(self) -> Held:
        """The first one, as `first_due` has seen it, to be delivered now."""
        due, at, order, offset, line, held = heappop(self._heap)
        if line == MEMORY:
            self._last = max(self._last, (due, at, order, offset))
        self._is_done(held)
        return held

    def remove(self, held: Held) -> None:
        """One waits no more, and is done with."""
        self._removed.add(_place(held))
        self._is_done(held)

    def _is_done(self, held: Held) -> None:
        schedule, fetched, line = held
        if self._by_id.get(schedule.id) is held:  # not so where two schedules share an id
            del self._by_id[schedule.id]
        self.bytes -= fetched.size
        line.holds -= 1
        line.complete(fetched.offset)
        if line is self._own:
            self._late.discard(fetched.offset)

    def mark(self) -> Mark:
        """What to store of the own line."""
        if not self.is_restored:
            return self._restored
        progress = self._own.progress
        return Mark(progress.committable, progress.end, self._last, tuple(sorted(self._late)))


def _key(schedule: Schedule, offset: int) -> Key:
    return schedule.due, schedule.at, schedule.order, offset


def _place(held: Held) -> tuple[int, int]:
    return held.line.line, held.fetched.offset
