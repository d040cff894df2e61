"""One rate over all tasks of a stage: what is granted, and that tasks start no more than that."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from queue import Queue
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import Batches, Context, RetriableError
from headway.errors import HeadwayError
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.rate_grants import Grants
from headway.spark.stage.rate_office import RateClient, RateLimit, RateOffice
from headway.spark.stage.task import Stage
from tests.unit.spark.stage.test_later import SCHEMA, SETTINGS, came_of, record

OFFICE = RateOffice("127.0.0.1")
IN_ANY_ORDER = replace(SETTINGS, key=(), max_concurrency=50)


def limit(rate: float) -> RateLimit:
    return OFFICE.limit(rate, "127.0.0.1")


@given(
    st.floats(0.5, 5_000),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.floats(0, 0.3)), max_size=60),
)
def test_no_more_is_granted_than_the_rate_allows_and_none_waits_for_ever(
    rate: float, asked: Sequence[tuple[str, int, float]]
) -> None:
    grants = Grants[str](rate, now=0.0)
    now, granted, waiting = 0.0, 0, dict[str, int]()
    burst = max(1.0, rate / 10)

    def take() -> None:
        nonlocal granted
        for who, starts in grants.due(now):
            assert 1 <= starts <= waiting.pop(who)
            granted += starts
        assert granted <= now * rate + burst + 1e-3

    for who, starts, pause in asked:
        now += pause
        waiting[who] = starts
        grants.ask(who, starts)
        take()
    while (due := grants.next_due()) is not None:
        assert due <= now + max(1.0, burst) / rate + 1e-6
        left = len(waiting)
        now = max(now, due) + 1e-9
        take()
        assert len(waiting) < left
    assert not waiting


def test_those_who_ask_together_have_equal_parts() -> None:
    grants = Grants[str](1_000, now=0.0)
    for who in "abcd":
        grants.ask(who, 1_000)
    assert grants.due(0.0) == [("a", 25), ("b", 25), ("c", 25), ("d", 25)]


def test_tasks_that_come_and_go_keep_the_rate_together() -> None:
    starts: list[float] = []

    async def call(row: InputRow) -> int:
        starts.append(time.monotonic())
        await asyncio.sleep(0.01)
        return 1

    shared = replace(IN_ANY_ORDER, rate=limit(200))
    # Tasks of unequal sizes, three at a time: what one leaves, the others have.
    sizes = [300, 20, 20, 20, 20, 20, 100, 100]
    began = time.monotonic()
    with ThreadPoolExecutor(3) as tasks:
        came = list(tasks.map(lambda size: came_of(call, [record(at, None) for at in range(size)], shared), sizes))
    took = time.monotonic() - began
    assert [{row["outcome"] for row in rows} for rows in came] == [{"ok"}] * len(sizes)
    assert len(starts) == 600
    assert took >= (600 - 20) / 200
    for at, moment in enumerate(starts):
        soon = sum(1 for other in starts[at:] if other - moment < 1)
        assert soon <= (200 + 20 + 10) * 1.05  # a burst, and what was granted just before


def test_retries_count_and_threads_wait_for_their_turn() -> None:
    calls: list[int] = []

    def call(row: InputRow, context: Context) -> int:
        calls.append(row.value)
        if context.attempt == 1:
            raise RetriableError("again")
        return 1

    began = time.monotonic()
    came = came_of(call, [record(number, None) for number in range(20)], replace(IN_ANY_ORDER, rate=limit(50)))
    assert {(row["outcome"], row["attempts"]) for row in came} == {("ok", 2)}
    assert len(calls) == 40
    assert time.monotonic() - began >= (40 - 5) / 50


def test_each_row_of_a_batch_counts() -> None:
    async def call(rows: Sequence[InputRow]) -> int:
        return len(rows)

    began = time.monotonic()
    limited = replace(IN_ANY_ORDER, batches=Batches(25), rate=limit(100))
    assert len(came_of(call, [record(number, None) for number in range(100)], limited)) == 100
    assert time.monotonic() - began >= (100 - 10 - 25) / 100


def test_rows_go_on_while_the_next_ones_are_not_there_yet() -> None:
    """Nothing may have to wait for the thread that reads: it may wait for a slow stage before this one."""
    done: list[int] = []

    async def call(row: InputRow) -> int:
        done.append(row.value)
        return 1

    def slowly() -> Iterator[Any]:
        yield from batches[:1]
        deadline = time.monotonic() + 30
        while len(done) < 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield from batches[1:]

    batches = [pa.RecordBatch.from_pylist([record(at, None) for at in range(50)], SCHEMA)] * 2
    rows = Stage(call, replace(IN_ANY_ORDER, rate=limit(100))).run(slowly())
    assert sum(batch.num_rows for batch in rows) == 100


def test_rows_that_wait_for_the_rate_come_again_at_the_deadline() -> None:
    async def call(row: InputRow) -> int:
        return 1

    limited = replace(IN_ANY_ORDER, rate=limit(10), deadline=2)
    came = came_of(call, [record(number, None) for number in range(100)], limited)
    done = [row for row in came if row["outcome"] == "ok"]
    assert 1 <= len(done) <= 2 * 10 + 2
    assert {(row["outcome"], row["attempts"]) for row in came if row not in done} == {("later", 0)}


def test_a_driver_that_cannot_be_reached_and_one_that_knows_nothing_of_the_task_fail_it_with_a_sentence() -> None:
    async def call(row: InputRow) -> int:
        return 1

    away = replace(limit(10), port=1)
    with pytest.raises(HeadwayError, match=r"needs the driver at 127\.0\.0\.1:1 for its share.*Let executors connect"):
        came_of(call, [record(0, None)], replace(IN_ANY_ORDER, rate=away))
    strange = replace(limit(10), secret="another")  # noqa: S106
    with pytest.raises(HeadwayError, match=r"cannot reach it: .*the connection has ended"):
        came_of(call, [record(0, None)], replace(IN_ANY_ORDER, rate=strange))


def test_a_task_fails_if_it_cannot_use_a_grant() -> None:
    def granted(starts: int) -> None:
        raise RuntimeError("unexpected")

    gone = Queue[HeadwayError]()
    with closing(RateClient(limit(10), granted, gone.put)) as client:
        client.ask(1)
        assert "could not be processed: RuntimeError('unexpected')" in str(gone.get(timeout=10))
