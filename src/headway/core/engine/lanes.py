"""Lanes of records that must be handled one after the other.

Invariants: a lane is a chain of records in offset order. Only its head can run. A record stays the head from its first
attempt until it is done. A lane belongs to one assignment of one partition, so equal keys in two topics or partitions
never share a lane. Keys are compared by value: the name of a lane is the bytes of the key.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar

from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState

R = TypeVar("R")

_BEHIND = AttemptState.BEHIND

ALONE: Final = object()  # the lane name of a record that never waits behind another record; no lane is looked up for it


_raw_key = attrgetter("raw_key")


OrderingName = Literal["key", "key_if_any", "partition", "unordered"]


class Ordering(enum.StrEnum):
    """Defines which records run in order: those with the same key, those of the same partition, or no records.

    With `KEY`, all records without a key count as having the same key. With `KEY_IF_ANY`, records without a key can run
    in any order. An ordering can also be given as text, as in `ordering="partition"`.
    """

    KEY = "key"
    KEY_IF_ANY = "key_if_any"
    PARTITION = "partition"
    UNORDERED = "unordered"

    def lanes_of(self, records: Sequence[Any]) -> Iterable[Hashable]:
        """Return the lane names of records of one partition. The name is `ALONE` for a record without a lane.

        With `KEY`, all records without a key share a lane, because their order can matter.
        """
        match self:
            case Ordering.KEY:
                return map(_raw_key, records)
            case Ordering.KEY_IF_ANY:
                return [ALONE if key is None else key for key in map(_raw_key, records)]
            case Ordering.PARTITION:
                return repeat(None, len(records))
            case Ordering.UNORDERED:
                return repeat(ALONE, len(records))


class Lanes(Generic[R]):
    """The lanes of one assignment.

    A lane exists while it has records. A lane consists of an entry for its last record, and of a link from each record
    to the next. A lane contains attempts, each of which is the current or the next attempt at its record.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Hashable, Attempt[R]] = {}

    def __len__(self) -> int:
        """Return the number of lanes with names that have records."""
        return len(self._last)

    def extend(self, attempts: Iterable[Attempt[R]]) -> list[Attempt[R]]:
        """Append each attempt to its lane, and return the attempts that are now the heads of their lanes."""
        heads = []
        last = self._last
        for attempt in attempts:
            lane = attempt.lane
            before = None if lane is ALONE else last.get(lane)
            if lane is not ALONE:
                last[lane] = attempt
            if before is None:
                heads.append(attempt)
            else:
                before.next = attempt
                attempt.state = _BEHIND
        return heads

    def advance(self, last: Attempt[R], again: Sequence[Attempt[R]]) -> Attempt[R] | None:
        """Remove the attempts of a lane that have run, up to `last`, and put their next attempts first.

        Returns the new head of the lane, or None if the lane is empty.
        """
        behind = last.next
        if behind is not None:
            last.next = None  # a reference to a finished attempt must not keep the rest of the lane in memory
        elif last.lane is not ALONE:
            if again:
                self._last[last.lane] = again[-1]
            else:
                del self._last[last.lane]
        for attempt in reversed(again) if again else ():
            attempt.next, behind = behind, attempt
        return behind

    def last(self, lane: Hashable) -> Attempt[R] | None:
        """Return the attempt at the last record of a lane with a name, or None if the lane is empty."""
        return self._last.get(lane)

    def take_out(self, attempt: Attempt[R], before: Attempt[R]) -> None:
        """Remove an attempt from the middle or the end of its lane. `before` is the attempt before it in the lane."""
        before.next, attempt.next = attempt.next, None
        if before.next is None:
            self._last[attempt.lane] = before

    def clear(self) -> None:
        """Forget all lanes."""
        self._last.clear()
