"""Limits of a stage: what comes of a call that takes too long, and how many run at a time."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headway import Batches
from headway.spark.stage.input_row import InputRow
from tests.unit.spark.stage.test_later import SETTINGS, came_of, record


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_takes_too_long_has_the_result_that_is_given_for_it_and_is_not_made_again(is_async: bool) -> None:
    calls: list[int] = []

    async def call_async(row: InputRow) -> int:
        calls.append(row.value)
        if row.value == 1:
            await asyncio.sleep(30)
        return 5

    def call(row: InputRow) -> int:
        calls.append(row.value)
        while row.value == 1:
            threading.Event().wait(0.005)
        return 5

    limited = replace(SETTINGS, time_limit=0.3, on_time_limit=lambda row: -row.value)
    rows = [record(number, b"a") for number in range(3)]
    came = {row["value"]: row for row in came_of(call_async if is_async else call, rows, limited)}
    assert {number: (row["outcome"], row["result"]) for number, row in came.items()} == {
        0: ("ok", 5),
        1: ("ok", -1),
        2: ("ok", 5),
    }
    assert calls == [0, 1, 2]


def test_a_given_result_that_fails_fails_the_row_alone() -> None:
    async def call(row: InputRow) -> int:
        if row.value < 2:
            await asyncio.sleep(30)
        return 5

    def given(row: InputRow) -> object:
        if row.value == 0:
            raise KeyError("no default")
        return "no number"

    limited = replace(SETTINGS, key=(), time_limit=0.05, on_time_limit=given)
    came = {row["value"]: row for row in came_of(call, [record(number, None) for number in range(3)], limited)}
    assert [came[number]["outcome"] for number in range(3)] == ["failed", "failed", "ok"]
    assert came[0]["error"]["exception"] == "builtins.KeyError"
    assert "does not fit int" in came[1]["error"]["message"]


def test_each_row_of_a_batch_that_takes_too_long_has_the_result_that_is_given_for_it() -> None:
    async def call(rows: Sequence[InputRow]) -> int:
        await asyncio.sleep(30)
        return 5

    limited = replace(SETTINGS, key=(), time_limit=0.1, batches=Batches(4), on_time_limit=lambda row: row.value)
    came = came_of(call, [record(number, None) for number in range(8)], limited)
    assert sorted((row["outcome"], row["result"]) for row in came) == [("ok", number) for number in range(8)]


def test_an_adaptive_stage_starts_with_few_calls_and_grows_while_that_pays() -> None:
    running = most = 0
    first: list[int] = []

    async def call(row: InputRow) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if len(first) < 8:
            first.append(running)
        await asyncio.sleep(0.005)
        running -= 1
        return 1

    rows = [record(number, None) for number in range(4_000)]
    came = came_of(call, rows, replace(SETTINGS, key=(), max_concurrency=200, adaptive=True))
    assert {row["outcome"] for row in came} == {"ok"}
    assert max(first) <= 8
    assert most > 8
