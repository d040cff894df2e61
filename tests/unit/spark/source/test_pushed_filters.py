"""Filters as bounds: no row that passes all filters is outside of them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from headway.records.record_types import TopicPartition
from headway.spark.source.pushed_filters import Bounds, bounds_of

START = datetime(2026, 5, 1, tzinfo=UTC)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["orders", "clicks"]),
    "level": st.integers(-1, 2),
    "partition": st.integers(0, 2),
    "offset": st.integers(-1, 5),
    "key": st.sampled_from([b"a", b"b", b""]),
    "timestamp": st.integers(-2000, 2000).map(lambda micros: START + timedelta(microseconds=micros))
    | st.just(datetime(1969, 12, 31, tzinfo=UTC)),
    "value": st.just(b"v"),
}
TESTS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, wanted: value == wanted,
    EqualNullSafe: lambda value, wanted: value == wanted,
    GreaterThan: lambda value, wanted: value > wanted,
    GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    LessThan: lambda value, wanted: value < wanted,
    LessThanOrEqual: lambda value, wanted: value <= wanted,
    In: lambda value, wanted: value in wanted,
}
ROWS = st.fixed_dictionaries(VALUES | {"ms": st.integers(-5, 5)})


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from(list(TESTS)))
    value = draw(st.lists(VALUES[column], max_size=3).map(tuple) if kind is In else VALUES[column])
    made: Filter = kind((column,), value)
    return made


def admits(bounds: Bounds, row: dict[str, Any]) -> bool:
    """Whether a reader that keeps to the bounds reads a row, by its definitions of them."""
    at = TopicPartition(row["topic"], partition=row["partition"], level=row["level"])
    start, end = bounds.within({at: -100}, {at: 100})
    time = (row["timestamp"] - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    return (
        at in start
        and start[at] <= row["offset"] < end[at]
        and (bounds.key is None or row["key"] in bounds.key)
        and (bounds.first_time is None or time >= bounds.first_time)
        and (bounds.end_time is None or time < bounds.end_time)
    )


@given(st.lists(filters(), max_size=4), ROWS)
def test_a_row_that_passes_all_filters_is_read(given_filters: list[Any], row: dict[str, Any]) -> None:
    # A record of Kafka has a time in whole milliseconds.
    row["timestamp"] = START + timedelta(milliseconds=row["ms"])
    if all(TESTS[type(each)](row[each.attribute[0]], each.value) for each in given_filters):
        assert admits(bounds_of(given_filters), row)


@given(st.lists(filters(), max_size=4), ROWS)
def test_places_and_keys_are_exact(given_filters: list[Any], row: dict[str, Any]) -> None:
    exact = [
        each
        for each in given_filters
        if each.attribute[0] in ("topic", "level", "partition") and isinstance(each, EqualTo | EqualNullSafe | In)
    ]
    at = TopicPartition(row["topic"], partition=row["partition"], level=row["level"])
    assert bounds_of(given_filters).has(at) == all(
        TESTS[type(each)](row[each.attribute[0]], each.value) for each in exact
    )


def test_times_are_rounded_outwards_to_milliseconds() -> None:
    half = START + timedelta(microseconds=500)
    ms = int(START.timestamp() * 1000)
    assert bounds_of([GreaterThan(("timestamp",), half), LessThan(("timestamp",), half)]) == Bounds(
        first_time=ms, end_time=ms + 1
    )
    assert bounds_of([EqualTo(("timestamp",), START)]) == Bounds(first_time=ms, end_time=ms + 1)


@pytest.mark.parametrize(
    "unused",
    [
        IsNotNull(("level",)),
        Not(EqualTo(("level",), 1)),
        StringContains(("topic",), "o"),
        EqualNullSafe(("key",), None),
        In(("level",), (1, None)),
        EqualTo(("timestampType",), 0),
        GreaterThan(("key",), b"a"),
    ],
)
def test_other_filters_bound_nothing(unused: Filter) -> None:
    assert bounds_of([unused]) == Bounds()


def test_a_range_without_a_row_that_passes_is_empty() -> None:
    at = TopicPartition("orders", partition=0)
    bounds = bounds_of([GreaterThanOrEqual(("offset",), 50), LessThan(("offset",), 10)])
    assert bounds.within({at: 0}, {at: 100}) == ({at: 50}, {at: 50})
