"""The digest by which the sink knows rows again: the same in any order and division, and another for other rows."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.kafka.producer.columnar import Columns
from headway.spark.sink.digest import RowsDigest

Row = tuple[str, bytes | None, bytes | None]


def digest(
    *chunks: Sequence[Row], due: Sequence[int | None] | None = None, identities: Sequence[Any] | None = None
) -> RowsDigest:
    rows = RowsDigest()
    for chunk in chunks:
        topics, keys, values = [list(column) for column in zip(*chunk, strict=True)] or [[], [], []]
        if identities is None:
            rows.add(Columns(len(chunk), 0, topics, values, keys, repeat(-1), None), due)
        else:
            rows.add_identities(identities)
    return rows


def of_values(*values: Any) -> RowsDigest:
    return digest([("orders", None, str(value).encode()) for value in values])


data = st.none() | st.binary(max_size=3)
some_rows = st.lists(st.tuples(st.sampled_from(["a", "b"]), data, data), max_size=8)


@given(some_rows, some_rows)
def test_two_digests_are_equal_if_the_rows_are_whatever_their_order(one: list[Row], other: list[Row]) -> None:
    def key(row: Row) -> list[Any]:
        return [(part is None, part) for part in row]

    assert (digest(one).what == digest(other).what) == (sorted(one, key=key) == sorted(other, key=key))
    assert digest(one, other).what == digest([*reversed(other), *one]).what


@pytest.mark.quick("2000")
@pytest.mark.parametrize("count", [2_000, 10_000])
def test_rows_that_go_up_by_one_are_told_apart_though_sums_of_checksums_are_equal(count: int) -> None:
    runs = [of_values(*range(first, first + 8)).what for first in range(0, 8 * count, 8)]
    assert len(set(runs)) == len(runs)


def test_the_digest_is_the_same_in_each_version_of_this_code() -> None:
    assert digest([("orders", b"k", b"v"), ("orders", None, None)]).what == "2:a375859f4b7a0418"


def test_due_times_are_told_apart_by_themselves_and_by_their_rows() -> None:
    rows: list[Row] = [("orders", None, b"1"), ("orders", None, b"2")]
    first, changed, swapped = (digest(rows, due=due) for due in ([5, 6], [5, 7], [6, 5]))
    assert first.what == changed.what == swapped.what == digest(rows).what
    assert len({first.when, changed.when, swapped.when, digest(rows).when}) == 4


@pytest.mark.parametrize("identities", [["a", "b"], [b"a", b"b"], [1, 2]])
def test_with_identities_nothing_else_counts(identities: list[Any]) -> None:
    rows: list[Row] = [("orders", None, b"1"), ("orders", None, b"2")]
    other: list[Row] = [("orders-dead", b"k", b"3"), ("orders", None, b"4")]
    given = digest(rows, identities=identities, due=[1, 2])
    assert given.what == digest(other, identities=identities).what
    assert given.when == ""
    assert given.what != digest(other, identities=[identities[0]] * 2).what


def test_what_comes_of_one_row_counts_as_one_however_much_it_is() -> None:
    once, more = RowsDigest(), RowsDigest()
    once.add_identities(["a", "b", "c"])
    more.add_identities(["a", "a", "b"])
    more.add_identities([])
    more.add_identities(["b", "c", "c"])
    assert (once.rows, once.what) == (more.rows, more.what)
