"""Determines which records a query must read, given its filters.

Spark also applies every filter to the rows itself. So the bounds can include rows that a filter rejects, but must never
exclude a row that all filters accept.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headway.kafka.reading.range_reader import Offsets
from headway.records.record_types import TopicPartition

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)
_PLACES = ("topic", "level", "partition")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that rows can have if they pass all filters. `None` means that any value can pass.

    Offsets are from `first_offset` to before `end_offset`. Timestamps are from `first_time` to before `end_time`, in
    milliseconds since the epoch.
    """

    topic: frozenset[Any] | None = None
    level: frozenset[Any] | None = None
    partition: frozenset[Any] | None = None
    key: frozenset[bytes] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    first_time: int | None = None
    end_time: int | None = None

    def has(self, partition: TopicPartition) -> bool:
        """Return whether rows of a partition can pass the filters."""
        own = (self.topic, partition.topic), (self.level, partition.level), (self.partition, partition.partition)
        return all(allowed is None or value in allowed for allowed, value in own)

    def within(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Reduce the ranges of offsets to those that can pass the filters on partitions and offsets."""
        kept = [at for at in start if self.has(at)]
        first = {at: _later(start[at], self.first_offset) for at in kept}
        return first, {at: max(first[at], _earlier(end[at], self.end_offset)) for at in kept}


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds of rows that pass all of these filters.

    >>> bounds_of([EqualTo(("level",), 2), GreaterThan(("offset",), 7)])
    Bounds(topic=None, level=frozenset({2}), partition=None, key=None, first_offset=8, end_offset=None, \
first_time=None, end_time=None)
    """
    bounds = Bounds()
    for each in filters:
        bounds = _with(bounds, each)
    return bounds


def _with(bounds: Bounds, wanted: Filter) -> Bounds:
    column = getattr(wanted, "attribute", ("",))[0]
    if isinstance(wanted, EqualTo | EqualNullSafe | In):
        values: Collection[Any] = wanted.value if isinstance(wanted, In) else [wanted.value]
        return _with_values(bounds, column, values)
    if isinstance(wanted, GreaterThan | GreaterThanOrEqual):
        return _with_least(bounds, column, wanted.value, strictly=isinstance(wanted, GreaterThan))
    if isinstance(wanted, LessThan | LessThanOrEqual):
        return _with_most(bounds, column, wanted.value, strictly=isinstance(wanted, LessThan))
    return bounds


def _with_values(bounds: Bounds, column: str, values: Collection[Any]) -> Bounds:
    given = [value for value in values if value is not None]
    if len(given) < len(values):
        return bounds  # a filter with a null either matches nulls or is null itself
    if column in _PLACES:
        changed: dict[str, Any] = {column: _common(getattr(bounds, column), frozenset(given))}
        return replace(bounds, **changed)
    if column == "key":
        return replace(bounds, key=_common(bounds.key, frozenset(map(bytes, given))))
    if column in ("offset", "timestamp") and given:
        least = _with_least(bounds, column, min(given), strictly=False)
        return _with_most(least, column, max(given), strictly=False)
    return bounds


def _with_least(bounds: Bounds, column: str, value: Any, *, strictly: bool) -> Bounds:
    if value is None:
        return bounds
    if column == "offset":
        return replace(bounds, first_offset=_later(value + strictly, bounds.first_offset))
    # Kafka cannot search for a time before 1970, and a record without a timestamp has -1, which is before 1970.
    if column == "timestamp" and (time := (value - _EPOCH) // _MILLISECOND) > 0:
        return replace(bounds, first_time=_later(time, bounds.first_time))
    return bounds


def _with_most(bounds: Bounds, column: str, value: Any, *, strictly: bool) -> Bounds:
    if value is None:
        return bounds
    if column == "offset":
        return replace(bounds, end_offset=_earlier(value + (not strictly), bounds.end_offset))
    if column == "timestamp":
        end = -((_EPOCH - value) // _MILLISECOND) + (not strictly)  # the end is rounded up to a whole millisecond
        return replace(bounds, end_time=_earlier(end, bounds.end_time))
    return bounds


def _common(known: frozenset[T] | None, given: frozenset[T]) -> frozenset[T]:
    return given if known is None else known & given


def _later(value: int, bound: int | None) -> int:
    return value if bound is None else max(value, bound)


def _earlier(value: int, bound: int | None) -> int:
    return value if bound is None else min(value, bound)
