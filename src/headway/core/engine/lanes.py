"""Lanes of records that must run one after the other.

Invariants: a lane is a chain of works in offset order. Only its head can run, and a record stays the head through all
its attempts, until it is done. Lanes belong to one assignment of one partition, so equal keys of two topics or
partitions never share a lane. Keys are compared by value: a lane's name is the key's bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar

from headway.core.engine.work import Work
from headway.core.engine.work_states import WorkState

R = TypeVar("R")

_BEHIND = WorkState.BEHIND

LaneNames = Callable[[Sequence[Any]], Iterable[Hashable]]
"""(records of one partition) -> the name of each record's lane, or `ALONE` for a record without a lane."""

ALONE: Final = object()  # the name for a record that shares its lane with no other, so it needs no look-up


def by_key(records: Sequence[Any]) -> Iterable[Hashable]:
    """Return a lane for each key. Records without a key share one lane, because their order can matter."""
    return map(_raw_key, records)


def by_key_if_any(records: Sequence[Any]) -> Iterable[Hashable]:
    """Return a lane for each key. Each record without a key has its own lane."""
    return [ALONE if key is None else key for key in map(_raw_key, records)]


def by_partition(records: Sequence[Any]) -> Iterable[Hashable]:
    """Return one lane for all records."""
    return repeat(None, len(records))


def unordered(records: Sequence[Any]) -> Iterable[Hashable]:
    """Return a lane for each record."""
    return repeat(ALONE, len(records))


_raw_key = attrgetter("raw_key")


OrderingName = Literal["key", "key_if_any", "partition", "unordered"]


class Ordering(enum.StrEnum):
    """Which records run in order: those with the same key, those of the same partition, or none.

    With `KEY`, all records without a key count as one key; with `KEY_IF_ANY`, each counts as its own key. An ordering
    can also be given as text, as in `ordering="partition"`.
    """

    KEY = "key"
    KEY_IF_ANY = "key_if_any"
    PARTITION = "partition"
    UNORDERED = "unordered"

    @property
    def lane_names(self) -> LaneNames:
        """The function that names this ordering's lanes."""
        return {
            Ordering.KEY: by_key,
            Ordering.KEY_IF_ANY: by_key_if_any,
            Ordering.PARTITION: by_partition,
            Ordering.UNORDERED: unordered,
        }[self]


class Lanes(Generic[R]):
    """The lanes of one assignment.

    A lane exists while it has works. It consists of an entry for its last work, and the links from work to work.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Hashable, Work[R]] = {}

    def __len__(self) -> int:
        """Return the number of named lanes with works."""
        return len(self._last)

    def extend(self, works: Iterable[Work[R]]) -> list[Work[R]]:
        """Append each work to its lane, and return the works that are now heads."""
        heads = []
        last = self._last
        for work in works:
            lane = work.lane
            before = None if lane is ALONE else last.get(lane)
            if lane is not ALONE:
                last[lane] = work
            if before is None:
                heads.append(work)
            else:
                before.next = work
                work.state = _BEHIND
        return heads

    def advance(self, last: Work[R], again: Sequence[Work[R]]) -> Work[R] | None:
        """Replace the works of a lane that have run, up to `last`, by their next attempts. Returns the new head."""
        behind = last.next
        if behind is not None:
            last.next = None  # so that a reference to a finished work does not keep its whole lane in memory
        elif last.lane is not ALONE:
            if again:
                self._last[last.lane] = again[-1]
            else:
                del self._last[last.lane]
        for work in reversed(again) if again else ():
            work.next, behind = behind, work
        return behind

    def clear(self) -> None:
        """Forget all lanes."""
        self._last.clear()
