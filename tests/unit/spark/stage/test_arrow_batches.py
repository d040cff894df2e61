"""Handlers that get Arrow and return Arrow."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from headway import BatchError, Batches, Context, FatalError, RetriableError
from headway.spark.stage import held_rows
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.settings import Settings
from tests.unit.spark.stage.test_later import SETTINGS, came_of, record

IN_ARROW = replace(SETTINGS, key=(), batches=Batches(10), arrow_columns=("value", "key"))
TWO = [record(1, b"a"), record(2, b"b")]

INT, TEXT = IntegerType(), StringType()
KINDS: dict[str, DataType] = {
    "int": INT,
    "double": DoubleType(),
    "string": TEXT,
    "variant": VariantType(),
    "array<int>": ArrayType(INT),
    "array<float>": ArrayType(FloatType()),
    "map<string, int>": MapType(TEXT, INT),
    "a int": StructType().add("a", INT),
    "a int not null": StructType().add("a", INT, nullable=False),
    "a bigint": StructType().add("a", LongType()),
    "a int, b string": StructType().add("a", INT).add("b", TEXT),
    "x array<struct<n int not null>>": StructType().add("x", ArrayType(StructType().add("n", INT, nullable=False))),
}


def returning(kind: DataType) -> Settings:
    return replace(IN_ARROW, columns=outcome_columns(kind, later=True))


def results_of(returned: Any, kind: str) -> list[Any]:
    """The results of two rows, or the messages of those that are not ok."""
    settings = returning(KINDS[kind])
    came = sorted(came_of(lambda batch: returned, TWO, settings), key=lambda row: row["value"])
    assert {row["attempts"] for row in came} == {1}
    return [row["result"] if row["outcome"] == "ok" else row["error"]["message"] for row in came]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_gets_the_columns_it_asks_for_and_returns_a_column(is_async: bool) -> None:
    schemas: list[pa.Schema] = []

    def call(batch: pa.RecordBatch, contexts: Sequence[Context]) -> pa.Array:
        schemas.append(batch.schema)
        assert [context.attempt for context in contexts] == [1] * batch.num_rows
        return pc.multiply(batch.column("value"), 2)

    async def call_async(batch: pa.RecordBatch) -> pa.Array:
        await asyncio.sleep(0)
        schemas.append(batch.schema)
        return pc.multiply(batch.column("value"), 2)

    came = came_of(call_async if is_async else call, [record(number, None) for number in range(100)], IN_ARROW)
    assert sorted((row["value"], row["result"]) for row in came) == [(number, 2 * number) for number in range(100)]
    assert {tuple(schema.names) for schema in schemas} == {("value", "key")}
    assert len(schemas) >= 10


def test_rows_of_a_key_are_in_one_batch_at_a_time_and_in_order() -> None:
    calls: list[tuple[bytes, list[int]]] = []
    running: set[bytes] = set()
    lock = threading.Lock()

    def call(batch: pa.RecordBatch) -> pa.Array:
        [key] = set(batch.column("key").to_pylist())
        with lock:
            assert key not in running
            running.add(key)
            calls.append((key, batch.column("value").to_pylist()))
        with lock:
            running.discard(key)
        return batch.column("value")

    rows = [record(number, b"%d" % (number % 3)) for number in range(300)]
    came = came_of(call, rows, replace(IN_ARROW, key=("key",)))
    assert {row["outcome"] for row in came} == {"ok"}
    for key in range(3):
        numbers = [number for of, call in calls for number in call if of == b"%d" % key]
        assert numbers == list(range(key, 300, 3))


def test_a_batch_of_rows_from_several_batches_of_spark_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "SHRINK_AT", 0)  # so that batches are copied while rows wait
    sizes: list[int] = []

    def call(batch: pa.RecordBatch) -> pa.Array:
        sizes.append(batch.num_rows)
        assert batch.column("key").to_pylist() == [b"%d" % each for each in batch.column("value").to_pylist()]
        return batch.column("value")

    rows = [record(number, b"%d" % number) for number in range(230)]
    settings = replace(IN_ARROW, batches=Batches(115, linger=5), max_concurrency=1)
    came = came_of(call, rows, settings)
    assert sorted((row["value"], row["result"]) for row in came) == [(number, number) for number in range(230)]
    assert max(sizes) > 50  # which is a batch of Spark's


def test_a_failed_batch_is_tried_again_and_the_rows_that_a_batch_error_names_fail_alone() -> None:
    def call(batch: pa.RecordBatch, contexts: Sequence[Context]) -> pa.Array:
        if contexts[0].attempt == 1:
            raise RetriableError("not yet")
        wrong = {
            index: FatalError("wrong") for index, each in enumerate(batch.column("value").to_pylist()) if each == 3
        }
        if wrong:
            raise BatchError(wrong)
        return batch.column("value")

    found = {row["value"]: row for row in came_of(call, [record(number, None) for number in range(30)], IN_ARROW)}
    assert {number for number, row in found.items() if row["outcome"] != "ok"} == {3}
    assert {row["attempts"] for row in found.values()} == {2}


@pytest.mark.parametrize(
    ("returned", "kind", "results"),
    [
        (pa.array([1, None], pa.int64()), "int", [1, None]),
        (pa.array([1, 2], pa.int64()), "double", [1.0, 2.0]),
        (pa.chunked_array([[1], [2]]), "int", [1, 2]),
        (pa.array(["a", "b"]).dictionary_encode(), "string", ["a", "b"]),
        (pa.array(["a", "b"], pa.large_string()), "string", ["a", "b"]),
        (pa.array(["a", "b"], pa.string_view()), "string", ["a", "b"]),
        (pa.array([b"a", "ü".encode()]), "string", ["a", "ü"]),
        (pa.nulls(2), "array<int>", [None, None]),
        (pa.record_batch({"b": ["x", "y"], "more": [0, 0], "a": [1, 2]}), "a int, b string", [{"a": 1, "b": "x"}]),
        (pa.table({"n": pa.chunked_array([[1], [2]])}), "int", [1, 2]),
        (pa.table({"a": pa.chunked_array([[1], [2]])}), "a bigint", [{"a": 1}, {"a": 2}]),
        (pa.array([[0.5], [1, None]], pa.large_list(pa.float64())), "array<float>", [[0.5], [1.0, None]]),
        (pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2, 3, 4]), 2), "array<float>", [[1.0, 2.0], [3.0, 4.0]]),
        (pa.array([[9], [1], [2, 3]], pa.list_(pa.int64())).slice(1), "array<int>", [[1], [2, 3]]),
        (
            pa.array([[("z", 0)], [("a", 1)], None], pa.map_(pa.large_string(), pa.int64())).slice(1),
            "map<string, int>",
            [[("a", 1)], None],
        ),
        (
            pa.array([{"x": [{"n": 1}]}, None, {"x": None}]).slice(1),
            "x array<struct<n int not null>>",
            [None, {"x": None}],
        ),
    ],
)
def test_results_are_of_the_schemas_type_whatever_arrow_they_come_in(
    returned: Any, kind: str, results: list[Any]
) -> None:
    assert results_of(returned, kind)[: len(results)] == results


@pytest.mark.parametrize(
    ("returned", "kind", "says"),
    [
        (pa.array([1]), "int", "The handler returned 1 results for a batch of 2 rows. Return one result for each row."),
        (pa.table({"a": []}), "a int", "returned 0 results for a batch of 2 rows"),
        (
            [1, 2],
            "int",
            "The handler returned a list, which is not Arrow data. Return a pyarrow Array, or a RecordBatch",
        ),
        (None, "int", "returned a NoneType, which is not Arrow data"),
        (pa.scalar(1), "int", "returned a Int64Scalar, which is not Arrow data"),
        (
            pa.table({"a": [1, 2], "b": [1, 2]}),
            "int",
            "returned 2 columns, but the schema is a single type without fields",
        ),
        (pa.array(["1", "2"]), "int", "The handler returned a value that does not fit int: it is string"),
        (pa.array([1, 2]), "string", "a value that does not fit string: it is int64"),
        (pa.array([True, False]), "int", "a value that does not fit int: it is bool"),
        (pa.array([["1"], ["2"]]), "array<int>", "a value that does not fit array<int>: of element, it is string"),
        (
            pa.table({"b": [1, 2]}),
            "a int",
            "a value that does not fit struct<a:int>: it does not have exactly one field a",
        ),
        (pa.table([[1, 2], [1, 2]], ["a", "a"]), "a int", "it does not have exactly one field a"),
        (pa.array([1, 2]), "a int", "a value that does not fit struct<a:int>: it is int64"),
    ],
)
def test_what_does_not_fit_fails_its_rows_with_a_sentence(returned: Any, kind: str, says: str) -> None:
    assert all(says in message for message in results_of(returned, kind))


@pytest.mark.parametrize(
    ("returned", "kind", "first", "says"),
    [
        (pa.array([1, 2**40]), "int", 1, "not in range"),
        (pa.array([1.0, 1.5]), "int", 1, "1.5"),
        (pa.array([b"a", b"\xff"]), "string", "a", "UTF"),
        (pa.array([[1], [2**40]]), "array<int>", [1], "not in range"),
        (
            pa.table({"a": [1, None]}),
            "a int not null",
            {"a": 1},
            "a is null or missing, but the schema requires a value",
        ),
        (
            pa.Array.from_buffers(
                pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")]
            ),
            "string",
            "a",
            "UTF8",
        ),
    ],
)
def test_a_value_that_does_not_fit_fails_only_its_own_row(returned: Any, kind: str, first: Any, says: str) -> None:
    fits, refused = results_of(returned, kind)
    assert fits == first
    assert says in refused


def test_variants_are_looked_through_row_by_row() -> None:
    good = VariantVal.parseJson('{"a": 1}')
    rows = [{"value": good.value, "metadata": good.metadata}, {"value": b"\xff", "metadata": b""}]
    kept, refused = results_of(pa.array(rows), "variant")
    assert kept == rows[0]
    assert "does not fit variant" in refused


def test_a_result_is_kept_though_the_handler_uses_its_memory_again() -> None:
    memory = np.zeros(10, np.int32)

    def call(batch: pa.RecordBatch) -> pa.Array:
        memory[: batch.num_rows] = batch.column("value").to_numpy()
        return pa.array(memory[: batch.num_rows])

    settings = replace(IN_ARROW, max_concurrency=1)
    came = came_of(call, [record(number, None) for number in range(100)], settings)
    assert all(row["result"] == row["value"] for row in came)


def test_a_call_that_takes_too_long_has_the_result_of_on_time_limit_beside_those_of_arrow() -> None:
    async def call(batch: pa.RecordBatch) -> pa.Array:
        await asyncio.sleep(30 if 3 in batch.column("value").to_pylist() else 0)
        return batch.column("value")

    settings = replace(IN_ARROW, batches=Batches(2), time_limit=0.2, on_time_limit=lambda row: -row.value)
    came = came_of(call, [record(number, None) for number in range(8)], settings)
    assert {row["value"]: row["result"] for row in came} == {0: 0, 1: 1, 2: -2, 3: -3, 4: 4, 5: 5, 6: 6, 7: 7}


def test_one_column_may_have_no_rows_of_python() -> None:
    """A struct of the whole batch, and a schema of one field."""
    kind = StructType().add("doubled", IntegerType())

    def call(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"doubled": pc.multiply(batch.column("value"), 2)})

    came = came_of(call, [record(number, None) for number in range(20)], returning(kind))
    assert sorted(row["result"]["doubled"] for row in came) == list(range(0, 40, 2))


def test_times_of_arrow_without_a_zone_are_of_the_session_too_and_those_with_one_lose_it_as_their_clock_shows() -> None:
    noon = datetime(2026, 1, 1, 12)
    in_tokyo = noon.replace(tzinfo=ZoneInfo("Asia/Tokyo"))
    kind = StructType().add("at", TimestampType()).add("shown", TimestampNTZType())

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = [
            pa.array([noon] * len(batch), pa.timestamp("us")),
            pa.array([in_tokyo] * len(batch), pa.timestamp("us", "Asia/Tokyo")),
        ]
        return pa.RecordBatch.from_arrays(times, names=["at", "shown"])

    [first, _] = came_of(call, TWO, replace(returning(kind), zone="Asia/Tokyo"))
    assert first["result"] == {"at": in_tokyo, "shown": noon}


def test_of_a_batch_whose_results_are_together_too_large_only_those_that_are_so_alone_fail() -> None:
    large = pa.array(["x" * (64 * 2**20 + 1), "y"])
    [first, second] = results_of(large, "string")
    assert first.startswith("The handler returned a result of ")
    assert second == "y"
