"""Calls of a parallel stage that do not end: their rows fail, and the task goes on."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import IntegerType

from headway import Context
from headway.core.retry import Retries, fixed_backoff
from headway.errors import HandlerError
from headway.spark.stage import handler_loop, running_calls
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.settings import RowHandler, Settings
from headway.spark.stage.task import Stage

SETTINGS = Settings(
    key=("key",),
    max_concurrency=4,
    time_limit=0.1,
    retries=Retries(fixed_backoff(0.01), max_attempts=3),
    columns=outcome_columns(IntegerType()),
)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What calls wait for that no time limit ends; they are given up soon, and end with the test."""
    monkeypatch.setattr(running_calls, "LONGER_BY", 0.4)
    event = threading.Event()
    yield event
    event.set()
    deadline = time.monotonic() + 30
    while running_calls.given_up or running_calls.left_behind:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(count: int) -> Iterator[pa.RecordBatch]:
    """As they come from Kafka; of two keys each."""
    for start in range(0, count, 50):
        numbers = range(start, min(count, start + 50))
        yield pa.RecordBatch.from_pydict(
            {
                "key": [number % (count // 2) for number in numbers],
                "topic": ["orders"] * len(numbers),
                "level": pa.array([2] * len(numbers), pa.int32()),
                "partition": pa.array([1] * len(numbers), pa.int32()),
                "offset": [1_000 + number for number in numbers],
                "number": list(numbers),
            }
        )


def outcomes(handler: RowHandler, count: int, settings: Settings = SETTINGS) -> dict[int, Any]:
    return {row["number"]: row for out in Stage(handler, settings).run(rows(count)) for row in out.to_pylist()}


def wait_without_a_limit(event: threading.Event) -> None:
    """In one call that Python does not interrupt, as a library's that waits for an answer."""
    event.wait()


def test_a_row_whose_call_blocks_fails_and_all_but_the_later_ones_of_its_key_go_on(release: threading.Event) -> None:
    calls: list[int] = []

    def call(row: InputRow, context: Context) -> int:
        calls.append(row.number)
        if row.number in range(5):
            wait_without_a_limit(release)
        return int(row.number)

    began = time.monotonic()
    found = outcomes(call, 200)
    assert time.monotonic() - began < 20

    assert {number: row["outcome"] for number, row in found.items()} == {
        **dict.fromkeys(range(200), "ok"),
        **dict.fromkeys(range(5), "failed"),
        **dict.fromkeys(range(100, 105), "parked"),
    }
    assert "within its time limit of 0.1 s, and could not be interrupted" in found[3]["error"]["message"]
    assert sorted(calls) == [number for number in range(200) if number not in range(100, 105)]


def test_what_comes_of_a_call_that_was_given_up_counts_no_more(release: threading.Event) -> None:
    def call(row: InputRow, context: Context) -> int:
        if row.number == 0:
            wait_without_a_limit(release)
        elif row.number == 39:
            release.set()  # long after the other was given up
            time.sleep(0.05)
        else:
            time.sleep(0.06)
        return 1

    found = outcomes(call, 40, replace(SETTINGS, max_concurrency=2))
    assert {number: row["outcome"] for number, row in found.items()} == {
        **dict.fromkeys(range(40), "ok"),
        0: "failed",
        20: "parked",
    }


def test_a_coroutine_that_swallows_its_time_limit_is_given_up(release: threading.Event) -> None:
    async def call(row: InputRow, context: Context) -> int:
        while row.number == 0 and not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return 1

    found = outcomes(call, 20)
    assert {number: row["outcome"] for number, row in found.items() if row["outcome"] != "ok"} == {
        0: "failed",
        10: "parked",
    }


def test_a_coroutine_that_holds_up_its_loop_is_a_sentence_that_names_its_row(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_loop, "LOOP_ANSWERS_WITHIN", 0.2)

    async def call(row: InputRow, context: Context) -> int:
        if row.number == 3:
            release.wait()
        return 1

    told = r"for Row 4 of the task \(topic orders, level 2, partition 1, offset 1003\) has blocked its event loop"
    with pytest.raises(HandlerError, match=told):
        outcomes(call, 20)
    release.set()


def test_where_calls_by_the_hundred_do_not_end_no_single_row_is_to_blame(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_calls, "MOST_STUCK", 8)

    def call(row: InputRow, context: Context) -> int:
        wait_without_a_limit(release)
        return 1

    told = (
        r"9 calls of handlers are still running .* is for Row \d+ of the task \(topic orders, level 2, partition 1, off"
    )
    with pytest.raises(HandlerError, match=told):
        outcomes(call, 100)


def test_a_call_that_was_interrupted_is_tried_again_and_never_given_up(release: threading.Event) -> None:
    def call(row: InputRow, context: Context) -> int:
        deadline = time.monotonic() + 5
        while row.number == 0 and context.attempt < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        return context.attempt

    found = outcomes(call, 20)
    assert (found[0]["outcome"], found[0]["result"]) == ("ok", 3)
    assert {row["outcome"] for row in found.values()} == {"ok"}


def test_the_loop_of_the_handlers_goes_on_whatever_they_do_to_it() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def call(row: InputRow, context: Context) -> int:
        if row.number == 1:
            made.append(asyncio.create_task(leave()))
        if row.number == 2:
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        if row.number == 3:
            raise SystemExit(4)
        return 1

    made: list[asyncio.Task[None]] = []
    settings = replace(SETTINGS, time_limit=None, retries=Retries(max_attempts=1), park_behind_failed=True)
    found = outcomes(call, 40, settings)
    assert {number for number, row in found.items() if row["outcome"] != "ok"} == {3, 23}
