"""Lanes: the records that must run one after the other.

Invariants: a lane is a chain of works in offset order. Only its head may run, and it stays the head until it is done,
through all its attempts. Lanes belong to one assignment of one partition, so equal keys of two topics or partitions
never meet. Keys are compared by value: a lane's name is the key's bytes.
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
"""(records of one partition) -> the name of each one's lane; `ALONE` for a record that has none."""

ALONE: Final = object()  # names a lane of its own, which is never looked up


def by_key(records: Sequence[Any]) -> Iterable[Hashable]:
    """Return a lane for each key's bytes; records without a key share one lane, since their order may matter."""
    return map(_raw_key, records)


def by_key_if_any(records: Sequence[Any]) -> Iterable[Hashable]:
    """Return a lane for each key's bytes; a record without a key is a lane of its own."""
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
    """The records that must run in order: those with the same key, those of the same partition, or none.

    Records without a key count as one key, or with `KEY_IF_ANY` as a key each. Wherever an ordering is expected, its
    text is accepted, too, as in `ordering="partition"`.
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

    A lane exists while it has a work: it is no more than an entry for its last work and the links from its head.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Hashable, Work[R]] = {}

    def __len__(self) -> int:
        """Return how many named lanes have work."""
        return len(self._last)

    def extend(self, works: Iterable[Work[R]]) -> list[Work[R]]:
        """Put each work at the end of its lane, and return those that are now a lane's head."""
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
        """Replace a lane's first works, up to `last`, which have run, by those of `again`; return the new head."""
        behind = last.next
        if behind is not None:
            last.next = None  # so that a reference to a finished work does not keep its lane
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
