"""One task of a parallel stage, without Spark: rows in, outcomes out."""

import asyncio
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    VariantVal,
)

from headway import Context, FatalError, RetryLater
from headway.core.retry import Retries, fixed_backoff
from headway.spark.stage import held_rows
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.result_type import ResultType
from headway.spark.stage.settings import RowHandler, Settings
from headway.spark.stage.task import Stage
from tests.contract.parallel import odd_handlers

REQUIRED = StructType([StructField("a", IntegerType(), nullable=False), StructField("b", StringType())])
SETTINGS = Settings(
    key=("key",),
    max_concurrency=1_000,
    time_limit=None,
    retries=Retries(fixed_backoff(0.01), max_attempts=3),
    columns=outcome_columns(IntegerType()),
)


def batches(keys: list[Any], size: int = 1_000) -> Iterator[pa.RecordBatch]:
    """Rows with these keys, whose numbers count up."""
    for start in range(0, len(keys), size):
        part = keys[start : start + size]
        yield pa.RecordBatch.from_pydict({"key": part, "number": list(range(start, start + len(part)))})


def outcomes(handler: RowHandler, keys: list[Any], settings: Settings = SETTINGS, size: int = 1_000) -> list[Any]:
    return [row for batch in Stage(handler, settings).run(batches(keys, size)) for row in batch.to_pylist()]


def in_order(calls: list[tuple[Any, int]]) -> bool:
    """Whether the numbers of each key go up."""
    last: dict[Any, int] = defaultdict(lambda: -1)
    for key, number in calls:
        if number < last[key]:
            return False
        last[key] = number
    return True


def test_each_row_has_one_outcome_beside_its_own_columns() -> None:
    async def double(row: InputRow, context: Context) -> int:
        return int(row.number) * 2

    rows = outcomes(double, [f"key {number % 100}" for number in range(5_000)])
    assert sorted(row["number"] for row in rows) == list(range(5_000))
    assert all(row["result"] == 2 * row["number"] and row["key"] == f"key {row['number'] % 100}" for row in rows)
    assert {(row["outcome"], row["attempts"], row["error"]) for row in rows} == {("ok", 1, None)}
    assert all(row["started"] <= row["done"] for row in rows)


def test_coroutines_of_thousands_of_rows_run_at_a_time_and_those_of_a_key_in_order() -> None:
    calls: list[tuple[Any, int]] = []
    running = most = 0
    behind_each_other: set[Any] = set()

    async def call(row: InputRow, context: Context) -> int:
        nonlocal running, most
        assert row.key not in behind_each_other
        behind_each_other.add(row.key)
        running += 1
        most = max(most, running)
        calls.append((row.key, row.number))
        await asyncio.sleep(0.02)
        running -= 1
        behind_each_other.remove(row.key)
        return 0

    outcomes(call, [number % 3_000 for number in range(9_000)], replace(SETTINGS, max_concurrency=2_000))
    assert in_order(calls)
    assert most == 2_000


def test_plain_functions_run_on_threads_in_the_order_of_their_key() -> None:
    calls: list[tuple[Any, int]] = []
    together = threading.Barrier(16)

    def call(row: InputRow, context: Context) -> int:
        if row.number < 16:
            together.wait(10)
        calls.append((row.key, row.number))
        return 0

    rows = outcomes(call, [number % 16 for number in range(2_000)], replace(SETTINGS, max_concurrency=16))
    assert in_order(calls)
    assert {row["outcome"] for row in rows} == {"ok"}


def test_a_row_is_tried_again_in_its_place_and_the_next_of_its_key_waits() -> None:
    calls = []

    async def call(row: InputRow, context: Context) -> int:
        calls.append((row.key, row.number, context.attempt))
        if row.number == 0 and context.attempt < 3:
            raise OSError("not yet")
        return 0

    rows = outcomes(call, ["a", "b", "a"])
    assert [call for call in calls if call[0] == "a"] == [("a", 0, 1), ("a", 0, 2), ("a", 0, 3), ("a", 2, 1)]
    assert {row["number"]: row["attempts"] for row in rows} == {0: 3, 1: 1, 2: 1}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_row_that_fails_for_good_parks_those_behind_it_of_its_key_alone_where_that_is_asked_for(
    asynchronous: bool,
) -> None:
    called = []

    def plain(row: InputRow, context: Context) -> int:
        called.append(row.number)
        if row.number == 2:
            raise FatalError("no")
        return 0

    async def coroutine(row: InputRow, context: Context) -> int:
        return plain(row, context)

    settings = replace(SETTINGS, park_behind_failed=True)
    rows = outcomes(coroutine if asynchronous else plain, ["a", "b", "a", "b", "a", "a"], settings, size=2)
    assert {row["number"]: row["outcome"] for row in rows} == {
        0: "ok",
        1: "ok",
        3: "ok",
        2: "failed",
        4: "parked",
        5: "parked",
    }
    assert sorted(called) == [0, 1, 2, 3]
    errors = {row["number"]: row["error"] for row in rows}
    assert errors[2] == {
        "exception": "headway.errors.FatalError",
        "message": "no",
        "reason": "FatalError is not retried",
    }
    assert errors[4]["reason"] == "a row of its key failed before it"


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_next_row_of_a_key_starts_when_one_has_failed_for_good_as_in_a_parallel_consumer(
    asynchronous: bool,
) -> None:
    called = []

    def plain(row: InputRow, context: Context) -> int:
        called.append((row.number, context.attempt))
        if row.number == 0:
            raise OSError("no")
        return 0

    async def coroutine(row: InputRow, context: Context) -> int:
        return plain(row, context)

    rows = outcomes(coroutine if asynchronous else plain, ["a"] * 20, size=7)
    assert {row["number"]: row["outcome"] for row in rows} == {0: "failed", **dict.fromkeys(range(1, 20), "ok")}
    assert called == [(0, 1), (0, 2), (0, 3), *((number, 1) for number in range(1, 20))]


def test_without_a_key_nothing_waits_and_nothing_is_parked() -> None:
    async def call(row: InputRow, context: Context) -> int:
        raise FatalError

    rows = outcomes(call, ["a"] * 10, replace(SETTINGS, key=()))
    assert [row["outcome"] for row in rows] == ["failed"] * 10


def test_rows_of_a_key_come_out_in_their_order_from_however_many_batches() -> None:
    chance = Random(7)

    async def call(row: InputRow, context: Context) -> int:
        await asyncio.sleep(chance.random() * 0.005)
        return 0

    rows = outcomes(call, [number % 50 for number in range(2_000)], size=10)
    assert in_order([(row["key"], row["number"]) for row in rows])


def test_a_key_of_many_rows_does_not_hold_up_the_others() -> None:
    async def call(row: InputRow, context: Context) -> int:
        await asyncio.sleep(0.002)
        return 0

    hot = [number % 50 == 0 for number in range(10_000)]
    rows = outcomes(call, ["hot" if is_hot else str(number) for number, is_hot in enumerate(hot)])
    assert len(rows) == 10_000
    # Its 200 rows take 0.4 s one after the other, and all others a tenth of that.
    assert [row["key"] for row in rows[-100:]] == ["hot"] * 100


def test_keys_of_several_columns_are_in_order_together() -> None:
    calls: list[tuple[Any, int]] = []

    async def call(row: InputRow, context: Context) -> int:
        await asyncio.sleep(0)
        calls.append(((row.key, row.number), row.number))
        return 0

    outcomes(call, ["a"] * 50, replace(SETTINGS, key=("key", "number")))
    assert len(calls) == 50


def test_a_call_that_takes_too_long_is_a_failed_attempt() -> None:
    async def call(row: InputRow, context: Context) -> int:
        await asyncio.sleep(60 if row.number else 0)
        return 0

    settings = replace(SETTINGS, time_limit=0.05, retries=Retries(max_attempts=1))
    rows = outcomes(call, ["a", "b"], settings)
    by_number = {row["number"]: row for row in rows}
    assert by_number[0]["outcome"] == "ok"
    assert by_number[1]["error"]["exception"] == "headway.errors.TimeLimitError"


@pytest.mark.parametrize("result", ["three", 2**70])
def test_a_result_that_does_not_fit_its_type_is_a_failed_row(result: Any) -> None:
    async def call(row: InputRow, context: Context) -> Any:
        return result if row.number == 3 else row.number

    rows = outcomes(call, list("abcdef"))
    assert {row["number"]: (row["outcome"], row["result"]) for row in rows} == {
        **{number: ("ok", number) for number in (0, 1, 2, 4, 5)},
        3: ("failed", None),
    }


def test_a_second_parameter_with_a_default_keeps_it_unless_it_is_the_context() -> None:
    def of_context(row: InputRow, told: Context | None = None) -> int:
        return told.attempt if told else -1

    def by_name(row: InputRow, context: Any = None) -> int:
        return int(context.attempt)

    def factor_before(factor: int, row: InputRow) -> int:
        return factor

    handlers: list[tuple[Any, int]] = [
        (lambda row, factor=2: factor, 2),
        (partial(factor_before, 3), 3),
        (partial(lambda row, factor: factor, factor=4), 4),
        (partial(lambda row, factor, twice=2: factor * twice, factor=5), 10),
        (of_context, 1),
        (by_name, 1),
        (lambda row, told: told.attempt, 1),
    ]
    for handler, result in handlers:
        assert [row["result"] for row in outcomes(handler, ["a"])] == [result]


def test_a_call_that_returned_a_coroutine_fails_its_row_with_a_sentence() -> None:
    async def call(row: InputRow) -> int:
        return 1

    handlers: list[RowHandler] = [lambda row: call(row) or None, lambda row: (number for number in (1,))]
    for handler, kind in zip(handlers, ("coroutine", "generator"), strict=True):
        [row] = outcomes(handler, ["a"], replace(SETTINGS, columns=outcome_columns(BinaryType())))
        assert (row["outcome"], row["attempts"]) == ("failed", 1)
        assert row["error"]["message"].startswith(f"The handler returned a {kind}, so its code has not run. If it is")


def test_a_row_behind_one_whose_result_does_not_fit_is_parked_where_that_is_asked_for() -> None:
    async def call(row: InputRow, context: Context) -> Any:
        return "three" if row.number == 0 else row.number

    rows = {row["number"]: row for row in outcomes(call, ["a", "b", "a"], replace(SETTINGS, park_behind_failed=True))}
    assert {number: row["outcome"] for number, row in rows.items()} == {0: "failed", 1: "ok", 2: "parked"}
    assert rows[0]["attempts"] == 1
    assert rows[0]["error"]["message"].startswith("The handler returned a value that does not fit int: ")


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        (StringType(), ["", "é", None], [3, "\udce9"]),
        (LongType(), [0, -(2**63), None], [2**63, "x"]),
        (DoubleType(), [0.5, 2], ["x"]),
        (BooleanType(), [True], [1, "x"]),
        (ArrayType(IntegerType()), [[1], []], [["x"], 3]),
    ],
)
def test_a_result_is_known_to_fit_its_type_or_not(kind: DataType, fits: list[Any], does_not: list[Any]) -> None:
    results = ResultType(kind)
    arrow_type = to_arrow_type(kind)
    checked = [results.checked(result)[0] for result in fits]
    assert results.column(checked).equals(pa.array(fits, arrow_type))
    for result in does_not:
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever Arrow or Python say
            results.checked(result)


def test_a_handler_cannot_put_a_row_off() -> None:
    async def call(row: InputRow, context: Context) -> int:
        raise RetryLater(3600)

    [row] = outcomes(call, ["a"])
    assert (row["outcome"], row["attempts"]) == ("failed", 1)
    assert row["error"]["message"].startswith(
        "The handler raised RetryLater, but parallel_map was called without later=True."
    )


def test_rows_are_read_on_when_what_filled_the_room_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "MOST_ROW_BYTES", 1_000 * 1_000)

    async def call(row: InputRow, context: Context) -> int:
        return 0

    rows = outcomes(call, ["hot"] * 5_000)
    assert [row["number"] for row in rows] == list(range(5_000))


def test_an_error_whose_text_is_no_unicode_is_a_failed_row() -> None:
    async def call(row: InputRow, context: Context) -> int:
        raise FatalError("caf\udce9")  # as the name of a file can be

    [row] = outcomes(call, ["a"])
    assert (row["outcome"], row["error"]["message"]) == ("failed", "caf?")


@pytest.mark.parametrize("result", [{"status": 200, "body": "x"}, (200, "x"), Row(status=200, body="x")])
def test_a_struct_is_returned_as_a_dict_a_tuple_or_a_row(result: Any) -> None:
    kind = StructType([StructField("status", IntegerType()), StructField("body", StringType())])

    async def call(row: InputRow, context: Context) -> Any:
        return result

    rows = outcomes(call, ["a"], replace(SETTINGS, columns=outcome_columns(kind)))
    assert rows[0]["result"] == {"status": 200, "body": "x"}


def test_a_task_that_is_ended_in_its_midst_cancels_what_runs() -> None:
    begun, cancelled = asyncio.Event(), threading.Event()

    async def call(row: InputRow, context: Context) -> int:
        if row.number == 0:
            await begun.wait()
            return 0
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0

    running = Stage(call, SETTINGS).run(batches(["a", "b"]))
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert cancelled.wait(5)


def test_rows_are_passed_on_while_others_still_run() -> None:
    release = threading.Event()

    def call(row: InputRow, context: Context) -> int:
        if row.number == 0:
            assert release.wait(30)
        return 0

    running = Stage(call, replace(SETTINGS, max_concurrency=2)).run(batches(list(range(3)), size=1))
    began = time.monotonic()
    first = next(running)
    assert first["number"].to_pylist()[0] != 0
    assert time.monotonic() - began < 5
    release.set()
    assert 0 in [number for batch in running for number in batch["number"].to_pylist()]


@pytest.mark.parametrize(
    ("kind", "fits", "does_not", "says"),
    [
        (REQUIRED, {"a": 1}, {"b": "x"}, "a is null or missing, but the schema requires a value"),
        (ArrayType(REQUIRED), [(1, "x"), None], [(1, "x"), (None, "x")], r"element\.a is null or missing"),
        (MapType(StringType(), REQUIRED), {"k": {"a": 1}}, {"k": {}}, r"value\.a is null or missing"),
        (REQUIRED, None, {"a": "x"}, "Could not convert 'x'"),
        (StringType(), "é", "caf\udce9", "surrogates not allowed"),
    ],
)
def test_a_result_that_java_would_fail_on_is_a_failed_row(kind: DataType, fits: Any, does_not: Any, says: str) -> None:
    async def call(row: InputRow, context: Context) -> Any:
        return does_not if row.number == 1 else fits

    rows = outcomes(call, list("abc"), replace(SETTINGS, columns=outcome_columns(kind)))
    assert {row["number"]: row["outcome"] for row in rows} == {0: "ok", 1: "failed", 2: "ok"}
    [failed] = [row for row in rows if row["outcome"] == "failed"]
    assert re.search(says, failed["error"]["message"])


def test_an_array_without_nulls_takes_none() -> None:
    results = ResultType(ArrayType(IntegerType(), containsNull=False))
    assert results.column([results.checked([1, 2])[0]]).to_pylist() == [[1, 2]]
    with pytest.raises(ValueError, match="element is null or missing, but the schema requires a value"):
        results.checked([1, None])


def test_a_variant_is_known_by_its_bytes() -> None:
    results = ResultType(StructType([StructField("about", VariantType()), StructField("n", IntegerType())]))
    parsed = VariantVal.parseJson('{"a": 1}')
    as_read = {"value": parsed.value, "metadata": parsed.metadata}
    kept = [results.checked(result)[0] for result in ((parsed, 1), {"about": as_read}, {"n": 2}, None)]
    about = [row and row["about"] for row in results.column(kept).to_pylist()]
    assert about == [as_read, as_read, None, None]
    for wrong in ({"a": 1}, "text", {"value": b"", "metadata": b""}):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever Python says
            results.checked((wrong, 1))


def test_a_result_is_taken_as_it_was_returned_whatever_its_handler_makes_of_it_afterwards() -> None:
    kept: list[list[Any]] = []

    async def call(row: InputRow, context: Context) -> Any:
        kept.append([row.number])
        if row.number == 2:
            kept[0][0] = "changed"
        return kept[-1]

    rows = outcomes(call, list("abc"), replace(SETTINGS, columns=outcome_columns(ArrayType(IntegerType()))))
    assert {row["number"]: (row["outcome"], row["result"]) for row in rows} == {
        0: ("ok", [0]),
        1: ("ok", [1]),
        2: ("ok", [2]),
    }


def test_an_error_that_cannot_say_what_it_is_fails_its_row_alone() -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Result:
        def __len__(self) -> int:
            raise UnspeakableError

        def __getattr__(self, name: str) -> Any:
            raise UnspeakableError

    async def call(row: InputRow, context: Context) -> Any:
        return Result() if row.number == 0 else "x"

    settings = replace(SETTINGS, columns=outcome_columns(ArrayType(StringType())))
    rows = outcomes(call, ["a"], settings)
    assert [row["outcome"] for row in rows] == ["failed"]


UNREADABLE = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))


@pytest.mark.parametrize(
    "column",
    [
        UNREADABLE,
        pa.array([0, 10**17 * 4], pa.timestamp("us", "UTC")),
        pa.array([0, 10**8], pa.date32()),
    ],
)
def test_a_value_that_python_cannot_have_fails_the_row_that_reads_it_even_as_a_key(column: pa.Array) -> None:
    async def call(row: InputRow, context: Context) -> int:
        return 0 if row.key else 1

    batch = pa.RecordBatch.from_arrays([column, pa.array([0, 1])], names=["key", "number"])
    settings = replace(SETTINGS, retries=Retries(max_attempts=1))
    put_out = list(Stage(call, settings).run(iter([batch])))
    came = {
        n: o for each in put_out for n, o in zip(each["number"].to_pylist(), each["outcome"].to_pylist(), strict=True)
    }
    assert came == {0: "ok", 1: "failed"}


@pytest.mark.parametrize("zone", ["GMT+02:00", "PST", "-8:00"])
def test_a_timestamp_is_read_in_a_zone_that_python_does_not_know_even_as_a_key(zone: str) -> None:
    async def call(row: InputRow, context: Context) -> int:
        return int(row.key.timestamp()) + int(row.times[0].timestamp())

    kind = pa.timestamp("us", zone)
    columns = {"key": pa.array([5_000_000], kind), "times": pa.array([[7_000_000]], pa.list_(pa.int64()))}
    columns["times"] = columns["times"].cast(pa.list_(kind))
    [put_out] = Stage(call, SETTINGS).run(iter([pa.RecordBatch.from_pydict(columns)]))
    assert put_out["result"].to_pylist() == [12]
    assert put_out["key"].type == kind


def test_rows_whose_key_is_nan_are_of_one_key() -> None:
    running: list[int] = []

    async def call(row: InputRow, context: Context) -> int:
        running.append(1)
        assert len(running) == 1
        await asyncio.sleep(0.001)
        running.clear()
        return 0

    rows = outcomes(call, [float("nan")] * 5)
    assert [row["outcome"] for row in rows] == ["ok"] * 5


def test_a_few_rows_that_wait_do_not_keep_the_batches_that_they_came_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one that runs until all others are done, a row of each batch waits."""
    monkeypatch.setattr(held_rows, "SHRINK_AT", 2 * 2**20)
    rows_of_batch, batches, text = 100, 100, "x" * 10_000
    release = asyncio.Event()
    others = rows_of_batch * batches - batches
    before, most = pa.total_allocated_bytes(), 0

    async def call(row: InputRow, context: Context) -> int:
        nonlocal others
        assert row.text == text
        if row.key == "hot":
            await release.wait()
        else:
            others -= 1
            if not others:
                release.set()
        assert row.text == text
        return int(row.number)

    def made() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for start in range(0, rows_of_batch * batches, rows_of_batch):
            numbers = range(start, start + rows_of_batch)
            keys = ["cold" + str(number) if number % rows_of_batch else "hot" for number in numbers]
            most = max(most, pa.total_allocated_bytes() - before)
            yield pa.RecordBatch.from_pydict({"key": keys, "number": list(numbers), "text": [text] * rows_of_batch})

    rows = [each for batch in Stage(call, SETTINGS).run(made()) for each in batch.select([1, 3]).to_pylist()]
    assert sorted(row["number"] for row in rows) == list(range(rows_of_batch * batches))
    assert all(row["number"] == row["result"] for row in rows)
    assert most < 50 * 2**20  # of 100 MB that came in; a busy machine has more of them on their way


def test_no_handler_is_called_while_results_are_many_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "MOST_RESULT_BYTES", 100_000)
    calls = 0

    async def call(row: InputRow, context: Context) -> str:
        nonlocal calls
        calls += 1
        return "x" * 10_000

    settings = replace(SETTINGS, max_concurrency=10, columns=outcome_columns(StringType()))
    running = Stage(call, settings).run(batches([str(number) for number in range(500)]))
    sizes = [next(running).num_rows]
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert calls <= sizes[0] + 40
        time.sleep(0.05)
    sizes += [batch.num_rows for batch in running]
    assert sum(sizes) == 500
    assert max(sizes) <= 11


@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_handler_raises_fails_its_row_alone(is_async: bool) -> None:
    def call(row: InputRow, context: Context) -> int:
        if row.key in odd_handlers.ODD:
            raise odd_handlers.ODD[row.key]()
        return 1

    async def call_async(row: InputRow, context: Context) -> int:
        return call(row, context)

    values = [*odd_handlers.ODD, "good"]
    settings = replace(SETTINGS, retries=Retries(fixed_backoff(0.01), max_attempts=2))
    rows = outcomes(call_async if is_async else call, values, settings)
    assert {row["number"]: row["outcome"] for row in rows} == {
        number: "ok" if value == "good" else "failed" for number, value in enumerate(values)
    }


def test_a_task_beside_the_handlers_that_ends_its_thread_ends_no_rows() -> None:
    async def fail() -> None:
        raise SystemExit

    async def call(row: InputRow, context: Context) -> int:
        if row.number == 0:
            asyncio.get_running_loop().call_later(0.02, lambda: asyncio.create_task(fail()))
        await asyncio.sleep(0.1)
        return 1

    assert [row["outcome"] for row in outcomes(call, ["a", "b"], SETTINGS)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [
        (StringType(), "x", "x" * (64 * 2**20 + 1)),
        (BinaryType(), b"x", bytes(64 * 2**20 + 1)),
        (ArrayType(StringType()), ["x"], ["x" * 2**20] * 65),
        (StructType([StructField("a", StringType())]), {"a": "x"}, {"a": "x" * (64 * 2**20 + 1)}),
    ],
    ids=["string", "binary", "array", "struct"],
)
def test_a_result_that_spark_could_not_take_fails_its_row_with_a_sentence(
    kind: DataType, small: Any, large: Any
) -> None:
    rows = outcomes(
        lambda row: large if row.number == 1 else small, list("abc"), replace(SETTINGS, columns=outcome_columns(kind))
    )
    assert {row["number"]: row["outcome"] for row in rows} == {0: "ok", 1: "failed", 2: "ok"}
    [told] = [row["error"]["message"] for row in rows if row["error"]]
    assert re.match(r"The handler returned a result of \d+ bytes, but a result can have at most 67108864 bytes", told)


def test_no_batch_of_results_takes_more_memory_than_one_result_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "MOST_RESULT_BYTES", 100_000)
    settings = replace(SETTINGS, columns=outcome_columns(StringType()))
    out = Stage(lambda row: "x" * 60_000, settings).run(batches(list(range(20))))
    sizes = [[len(text.as_py()) for text in batch.column("result")] for batch in out]
    assert sizes == [[60_000]] * 20
