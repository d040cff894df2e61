"""Rows of a task that start by their priority, and rows that expire."""

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import Batches, Context
from headway.core.retry import Retries, fixed_backoff
from headway.records.expiry import expiry_header
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.settings import RowHandler, Settings
from headway.spark.stage.task import Stage
from tests.unit.spark.stage.test_later import SCHEMA, SETTINGS, again, came_of, record

RANKED = pa.schema([*SCHEMA, pa.field("rank", pa.float64())])
ONE_AT_A_TIME = replace(SETTINGS, max_concurrency=1, priority="rank")


def ranked(number: int, key: bytes | None, rank: float | None) -> dict[str, Any]:
    return {**record(number, key), "rank": rank}


def outcomes_of(
    handler: RowHandler, rows: Sequence[dict[str, Any]], settings: Settings, *, batch: int = 20
) -> list[dict[str, Any]]:
    batches = (pa.RecordBatch.from_pylist(list(rows[at : at + batch]), RANKED) for at in range(0, len(rows), batch))
    return [row for batch in Stage(handler, settings).run(batches) for row in batch.to_pylist()]


def started_of(rows: Sequence[dict[str, Any]], settings: Settings = ONE_AT_A_TIME) -> list[int]:
    """Return the numbers of the rows in the order in which they start, when all have been read before the first ends.

    The first row of all holds the only slot until then.
    """
    started: list[int] = []
    all_read = threading.Event()

    def handle(row: InputRow) -> int:
        if row.value == -1:
            assert all_read.wait(30)
        else:
            started.append(row.value)
        return 1

    first = pa.RecordBatch.from_pylist([ranked(-1, None, None)], RANKED)
    parts = (list(rows[at : at + 8 + len(rows) // 10]) for at in range(0, len(rows), 8 + len(rows) // 10))
    batches = [first, *(pa.RecordBatch.from_pylist(part, RANKED) for part in parts)]

    def read() -> Any:
        yield from batches
        all_read.set()

    assert sum(batch.num_rows for batch in Stage(handle, settings).run(read())) == 1 + len(rows)
    return started


def expected(rows: Sequence[tuple[int, float | None]]) -> list[int]:
    """Return the order of a naive model: again and again the first of the highest rows that may start."""
    left = list(enumerate(rows))
    order = []
    while left:
        heads = [each for at, each in enumerate(left) if all(other[1][0] != each[1][0] for other in left[:at])]
        first = max(heads, key=lambda each: (-math.inf if each[1][1] is None else each[1][1], -each[0]))
        order.append(first[0])
        left.remove(first)
    return order


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, -1.0, 0.0, 2.0, 5.0])), max_size=30))
def test_rows_start_highest_first_where_the_order_of_their_keys_allows(rows: list[tuple[int, float | None]]) -> None:
    told = started_of([ranked(number, b"%d" % key, rank) for number, (key, rank) in enumerate(rows)])
    assert told == expected(rows)


def test_without_a_key_all_rows_start_highest_first_and_null_and_nan_are_the_lowest() -> None:
    ranks = [None, 1.0, math.nan, 3.0, 2.0]
    rows = [ranked(number, None, rank) for number, rank in enumerate(ranks)]
    assert started_of(rows, replace(ONE_AT_A_TIME, key=())) == [3, 4, 1, 0, 2]


def test_a_task_reads_all_its_rows_to_find_the_highest() -> None:
    rows = [ranked(number, None, float(number)) for number in range(3_000)]
    assert started_of(rows, replace(ONE_AT_A_TIME, key=())) == list(range(2_999, -1, -1))


def test_batches_are_of_the_highest_rows() -> None:
    sizes: list[list[int]] = []
    all_read = threading.Event()

    def handle(rows: Sequence[InputRow]) -> int:
        if rows[0].value == -1:
            assert all_read.wait(30)
        sizes.append([row.value for row in rows])
        return 1

    batches = [pa.RecordBatch.from_pylist([ranked(-1, None, None)], RANKED)]
    batches += [pa.RecordBatch.from_pylist([ranked(at, None, at % 3) for at in range(9)], RANKED)]

    def read() -> Any:
        yield from batches
        all_read.set()

    list(Stage(handle, replace(ONE_AT_A_TIME, key=(), batches=Batches(3))).run(read()))
    assert sizes == [[-1], [2, 5, 8], [1, 4, 7], [0, 3, 6]]


def test_rows_that_failed_come_again_and_all_come_out_once() -> None:
    async def handle(row: InputRow, context: Context) -> int:
        await asyncio.sleep(0)
        if row.value % 3 == 0 and context.attempt == 1:
            raise OSError("busy")
        return 1

    rows = [ranked(number, b"%d" % (number % 7), number % 5) for number in range(500)]
    came = outcomes_of(handle, rows, replace(SETTINGS, priority="rank"))
    assert sorted(row["value"] for row in came) == list(range(500))
    assert {row["outcome"] for row in came} == {"ok"}


def sent(number: int, ago: float, *headers: tuple[str, bytes]) -> dict[str, Any]:
    return {**record(number, None, headers), "timestamp": datetime.now(UTC) - timedelta(seconds=ago)}


def test_a_row_is_not_started_longer_after_its_timestamp_than_the_stage_or_its_header_says() -> None:
    async def handle(row: InputRow) -> int:
        return 1

    soon = expiry_header(round((time.time() - 1) * 1000))
    much_later = expiry_header(round((time.time() + 1_000) * 1000))
    rows = [sent(0, 0), sent(1, 500), sent(2, 0, soon), sent(3, 500, much_later), {**sent(4, 0), "timestamp": None}]
    came = {row["value"]: row["outcome"] for row in came_of(handle, rows, replace(SETTINGS, key=(), expires_after=300))}
    assert came == {0: "ok", 1: "expired", 2: "expired", 3: "expired", 4: "ok"}


def test_a_row_that_comes_again_expires_by_the_time_at_which_it_was_first_sent() -> None:
    async def handle(row: InputRow) -> int:
        raise OSError("busy")

    # It was sent long ago, and comes again as a record of now.
    put_off = replace(SETTINGS, key=(), retries=Retries(fixed_backoff(60), max_attempts=3), deadline=5)
    [first] = came_of(handle, [record(0, None)], put_off)
    assert first["outcome"] == "later"
    second = {**again(first), "timestamp": datetime.now(UTC)}
    [came] = came_of(handle, [second], replace(SETTINGS, key=(), expires_after=300))
    assert (came["outcome"], came["attempts"]) == ("expired", 1)
