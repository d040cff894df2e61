"""Handlers of batches of rows."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headway import BatchError, Batches, Context, FatalError, RetriableError, RetryLater
from headway.core.retry import Retries, fixed_backoff
from headway.spark.stage.input_row import InputRow
from tests.unit.spark.stage.test_later import SETTINGS, came_of, record

IN_BATCHES = replace(SETTINGS, key=(), batches=Batches(10))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_has_a_result_for_each_row(is_async: bool) -> None:
    sizes: list[int] = []

    def call(rows: Sequence[InputRow], contexts: Sequence[Context]) -> list[int]:
        sizes.append(len(rows))
        assert [context.attempt for context in contexts] == [1] * len(rows)
        return [row.value * 2 for row in rows]

    async def call_async(rows: Sequence[InputRow]) -> list[int]:
        await asyncio.sleep(0)
        sizes.append(len(rows))
        return [row.value * 2 for row in rows]

    came = came_of(call_async if is_async else call, [record(number, None) for number in range(100)], IN_BATCHES)
    assert sorted((row["value"], row["result"]) for row in came) == [(number, 2 * number) for number in range(100)]
    assert max(sizes) == 10


def test_rows_of_a_key_are_in_one_batch_at_a_time_and_in_order() -> None:
    calls: list[list[int]] = []

    async def call(rows: Sequence[InputRow]) -> int:
        assert len({row.key for row in rows}) == 1
        calls.append([row.value for row in rows])
        return len(rows)

    came_of(call, [record(number, b"%d" % (number % 3)) for number in range(90)], replace(IN_BATCHES, key=("key",)))
    for key in range(3):
        numbers = [number for call in calls for number in call if number % 3 == key]
        assert numbers == list(range(key, 90, 3))


def test_the_rows_that_a_batch_error_names_fail_alone() -> None:
    async def call(rows: Sequence[InputRow]) -> list[int]:
        failed: dict[int, Exception] = {}
        for index, row in enumerate(rows):
            if row.value == 3:
                failed[index] = FatalError("wrong")
            if row.value == 4:
                failed[index] = RetryLater(60)
        if failed:
            raise BatchError(failed)
        return [1] * len(rows)

    found = {row["value"]: row for row in came_of(call, [record(number, None) for number in range(10)], IN_BATCHES)}
    assert {number: row["outcome"] for number, row in found.items()} == {
        **dict.fromkeys(range(10), "ok"),
        3: "failed",
        4: "later",
    }


@pytest.mark.parametrize(
    ("result", "says"), [([1], "returned 1 results for a batch of 2 rows"), (["x", "y"], "does not fit int")]
)
def test_results_that_do_not_fit_fail_their_rows(result: list[Any], says: str) -> None:
    async def call(rows: Sequence[InputRow]) -> list[Any]:
        return result

    came = came_of(call, [record(0, None), record(1, None)], IN_BATCHES)
    assert [(row["outcome"], row["attempts"]) for row in came] == [("failed", 1)] * 2
    assert all(says in row["error"]["message"] for row in came)


def test_one_result_is_that_of_each_row_of_the_batch() -> None:
    async def call(rows: Sequence[InputRow]) -> int:
        return 7

    assert [row["result"] for row in came_of(call, [record(0, None), record(1, None)], IN_BATCHES)] == [7, 7]


def test_a_batch_that_runs_at_the_deadline_comes_again_row_by_row() -> None:
    async def call(rows: Sequence[InputRow]) -> int:
        await asyncio.sleep(0 if rows[0].value else 30)
        return 1

    rows = [record(number, b"%d" % (number % 2)) for number in range(8)]
    came = came_of(call, rows, replace(IN_BATCHES, key=("key",), batches=Batches(2), deadline=1.5))
    assert {row["value"]: (row["outcome"], row["attempts"]) for row in came} == {
        **dict.fromkeys((1, 3, 5, 7), ("ok", 1)),
        **dict.fromkeys((0, 2), ("later", 1)),
        **dict.fromkeys((4, 6), ("later", 0)),
    }


def test_rows_linger_for_their_batch_no_longer_when_none_will_come() -> None:
    async def call(rows: Sequence[InputRow]) -> int:
        return len(rows)

    for key in ((), ("key",)):
        settings = replace(IN_BATCHES, key=key, batches=Batches(10, linger=600))
        came = came_of(call, [record(number, b"a") for number in range(25)], settings)
        assert sorted(row["result"] for row in came) == [5] * 5 + [10] * 20


def test_an_earlier_row_that_is_tried_again_is_not_behind_a_later_one_that_failed() -> None:
    calls: list[list[int]] = []

    async def call(rows: Sequence[InputRow]) -> int:
        calls.append([row.value for row in rows])
        if len(calls) == 1:
            raise BatchError({0: RetriableError("busy"), 1: FatalError("wrong")})
        return 1

    rows = [record(number, b"a") for number in range(4)]
    settings = replace(IN_BATCHES, key=("key",), batches=Batches(2), park_behind_failed=True)
    came = came_of(call, rows, settings)
    assert {row["value"]: (row["outcome"], row["attempts"]) for row in came} == {
        0: ("ok", 2),
        1: ("failed", 1),
        2: ("parked", 0),
        3: ("parked", 0),
    }
    assert calls == [[0, 1], [0]]


def test_rows_of_a_batch_that_come_again_do_so_in_their_order() -> None:
    attempts: list[int] = []

    async def call(rows: Sequence[InputRow]) -> int:
        attempts.append(len(rows))
        raise BatchError(
            {0: RetriableError("busy"), 1: RetriableError("busy", retry_after=100)}
            if len(rows) == 2
            else {0: OSError()}
        )

    backoff = Retries(fixed_backoff(0.01), max_attempts=None)
    came = came_of(
        call,
        [record(0, b"a"), record(1, b"a")],
        replace(IN_BATCHES, key=("key",), batches=Batches(2), retries=backoff, deadline=1.5),
    )
    found = {row["value"]: row for row in came}
    assert {row["outcome"] for row in came} == {"later"}
    assert found[0]["again_at"] <= found[1]["again_at"]
    assert len(attempts) > 2


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit])
def test_a_result_that_raises_anything_when_it_is_read_is_its_rows_failure(
    is_async: bool, error: type[BaseException]
) -> None:
    class Result(dict[str, Any]):
        def keys(self) -> Any:
            raise error

        items = __iter__ = __getitem__ = __len__ = keys  # type: ignore[assignment]

    def call(rows: Sequence[InputRow]) -> Any:
        return Result()

    async def call_async(rows: Sequence[InputRow]) -> Any:
        return Result()

    came = came_of(call_async if is_async else call, [record(0, b"a")], replace(IN_BATCHES, batches=Batches(2)))
    assert [row["outcome"] for row in came] == ["failed"]
