"""Records that wait in memory until they are due, and the small state that is enough to find them after a restart.

Most of these records come from the memory topic, which the relay reads without delay. Two things are stored for this
topic: the record that was delivered last, and the offset up to which the topic was read. All records that precede the
stored record in the order of delivery have been delivered, except records that arrived late, whose offsets are stored
too. An offset map would be too large, because it would have a gap for each waiting record and be stored up to a
thousand times a second.

Invariants: records are returned in the order of (due time, time of scheduling, order, offset). `bytes` is the total
size of the waiting records.
"""

from collections import deque
from heapq import heappop, heappush
from typing import Annotated

import msgspec

from headway.core.delay.delay_topic_window import DelayTopicWindow, Fetched
from headway.core.delay.ladder import MEMORY
from headway.core.delay.schedule import Schedule
from headway.core.untrusted import Count

_KeyNumber = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
Key = tuple[_KeyNumber, _KeyNumber, _KeyNumber, _KeyNumber]

_FIRST: Key = (-1, -1, -1, -1)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Shows which records of the memory topic have been delivered.

    All records below `offset` have been delivered. Of the records from `offset` to `end`, those whose key is at most
    `last` have been delivered, except those in `late`. All unreadable records below `end` have been refused, because
    they have no due time to wait for.
    """

    offset: Count = 0
    end: Count = 0
    last: Key = _FIRST
    late: tuple[Count, ...] = ()

    def has_delivered(self, schedule: Schedule, offset: int) -> bool:
        """Return whether the record of this schedule at this offset has been delivered."""
        return offset < self.end and _key(schedule, offset) <= self.last and offset not in self.late


class Held(msgspec.Struct, gc=False):
    """A record that waits in memory, and the delay topic that it came from."""

    schedule: Schedule
    fetched: Fetched
    window: DelayTopicWindow


_Entry = tuple[int, int, int, int, int, Held]  # the four numbers of a record's key, its delay topic, and the record


class DueQueue:
    """The records that wait in memory, in the order of delivery."""

    def __init__(self, mark: Mark, own: DelayTopicWindow) -> None:
        self.bytes = 0
        self._own = own
        self._restored = mark
        self._last = mark.last
        self._late: set[int] = set()
        # Records that arrive in the order of delivery are kept in a deque, because a heap of thousands is slower. If
        # all delays are equal, as with retries, every record arrives in this order.
        self._in_order: deque[_Entry] = deque()
        self._heap: list[_Entry] = []
        self._removed: set[tuple[int, int]] = set()  # the delay topics and offsets of entries that no longer wait
        self._by_id: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._in_order) + len(self._heap) - len(self._removed)

    @property
    def is_restored(self) -> bool:
        """True if all records that were read before a restart have been read again.

        No record must be taken before that.
        """
        # It is not enough to have reached the end of the log: a record that is still in the window might have been
        # delivered before the restart.
        all_left = self._own.ended and self._own.head is None
        return all_left or self._own.progress.end >= self._restored.end

    def was_delivered(self, schedule: Schedule, fetched: Fetched) -> bool:
        """Return whether a record of the memory topic was delivered before a restart."""
        return self._restored.has_delivered(schedule, fetched.offset)

    def was_refused(self, fetched: Fetched) -> bool:
        """Return whether an unreadable record of the memory topic was already refused before a restart."""
        return fetched.offset < self._restored.end

    def add(self, held: Held) -> None:
        """Keep a record until it is due."""
        schedule, fetched, window = held.schedule, held.fetched, held.window
        offset = fetched.offset
        if window is self._own and _key(schedule, offset) <= self._last:
            self._late.add(offset)
        window.holds += 1
        self.bytes += fetched.size
        self._by_id[schedule.id] = held
        entry = (schedule.due, schedule.at, schedule.order, offset, window.delay_topic, held)
        if not self._in_order or self._in_order[-1] < entry:
            self._in_order.append(entry)
        else:
            heappush(self._heap, entry)

    def get(self, id_: str) -> Held | None:
        """Return the waiting record of a schedule, or None."""
        return self._by_id.get(id_)

    @property
    def first_due(self) -> int | None:
        """The due time of the first record, or None if no record waits."""
        first = self._first()
        return first[0] if first else None

    def take(self, until: float) -> Held | None:
        """Remove and return the first record for delivery. Returns None if no record is due by `until`."""
        first = self._first()
        if first is None or first[0] > until:
            return None
        held = self._pop(first)
        if first[4] == MEMORY and (key := first[:4]) > self._last:
            self._last = key
        self._is_done(held)
        return held

    def passed(self, until: int) -> None:
        """Record that all records due before this time were delivered or cancelled, so that none of them waits."""
        self._last = max(self._last, (until, -1, -1, -1))

    def _first(self) -> _Entry | None:
        """Return the next entry that still waits, and drop removed entries before it."""
        while True:
            first = self._in_order[0] if self._in_order else None
            if self._heap and (first is None or self._heap[0] < first):
                first = self._heap[0]
            if first is None or not self._removed or _place(first[-1]) not in self._removed:
                return first
            self._removed.discard(_place(self._pop(first)))

    def _pop(self, first: _Entry) -> Held:
        if self._in_order and self._in_order[0] is first:
            self._in_order.popleft()
        else:
            heappop(self._heap)
        return first[-1]

    def remove(self, held: Held) -> None:
        """Remove a record that does not need to wait any longer, and mark it as done."""
        self._removed.add(_place(held))
        self._is_done(held)

    def _is_done(self, held: Held) -> None:
        schedule, fetched, window = held.schedule, held.fetched, held.window
        if self._by_id.get(schedule.id) is held:  # otherwise another schedule with the same id has replaced it
            del self._by_id[schedule.id]
        self.bytes -= fetched.size
        window.holds -= 1
        window.complete(fetched.offset)
        if window is self._own:
            self._late.discard(fetched.offset)

    def mark(self) -> Mark:
        """Return the mark to store for the memory topic."""
        if not self.is_restored:
            return self._restored
        progress = self._own.progress
        return Mark(progress.committable, progress.end, self._last, tuple(sorted(self._late)))


def _key(schedule: Schedule, offset: int) -> Key:
    return schedule.due, schedule.at, schedule.order, offset


def _place(held: Held) -> tuple[int, int]:
    return held.window.delay_topic, held.fetched.offset
