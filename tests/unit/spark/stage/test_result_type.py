"""Results of a parallel stage: those that fit alone come out the same beside any other."""

import asyncio
import datetime as dt
from collections import OrderedDict, namedtuple
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    VariantVal,
)

from headway import Context
from headway.core.retry import Retries
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.outcomes import OutcomeColumns, RowOutcome, outcome_columns
from headway.spark.stage.result_type import ResultType
from headway.spark.stage.settings import Settings
from headway.spark.stage.task import Stage

Pair = namedtuple("Pair", "a b")


class Text(str):
    """A string of a class of the user's."""


PARSED = VariantVal.parseJson('{"a": 1}')
AS_READ = {"value": PARSED.value, "metadata": PARSED.metadata}
STRUCT = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
REQUIRED = StructType([StructField("a", IntegerType(), nullable=False), StructField("b", StringType())])
WITH_VARIANT = StructType([StructField("a", VariantType()), StructField("b", IntegerType())])
STRUCTS = [
    *(None, {}, {"a": 1, "b": "x"}, {"a": 1}, {"b": "é"}, {b"a": 2, b"b": "y"}, {1: 2}, {"c": 1}, {"a": 2**40}),
    *((1, "x"), (None, None), (1,), (), Row(a=1, b="x"), Row("a")(1), Pair(1, "x"), OrderedDict(a=3), (True, "x")),
    *([("a", 1), ("b", "z")], [], {"a": np.int64(3), "b": np.str_("q")}, {"a": 1.0, "b": Text("x")}, (1.5, "x"), "ab"),
]
TIMES: list[Any] = [
    *(None, dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), np.datetime64("2020-01-01T00:00:00")),
    *(np.datetime64("2020-01-01", "ns"), 10**15, dt.date(2020, 1, 1), dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1)),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
]


@pytest.mark.parametrize(
    ("kind", "results"),
    [
        (STRUCT, STRUCTS),
        (REQUIRED, STRUCTS),
        (StructType([StructField("s", STRUCT)]), [{"s": each} for each in STRUCTS] + [(each,) for each in STRUCTS]),
        (ArrayType(STRUCT), [[each] for each in STRUCTS] + [(), None]),
        (MapType(StringType(), STRUCT), [{"k": each} for each in STRUCTS] + [[("k", each)] for each in STRUCTS]),
        (
            VariantType(),
            [None, PARSED, AS_READ, {**AS_READ, "value": bytearray(PARSED.value)}, VariantVal.parseJson("1"), "x", {}],
        ),
        (WITH_VARIANT, [(PARSED, 1), {"a": PARSED, "b": 1}, Row(a=PARSED, b=1), {"a": None}, Pair(AS_READ, 1), None]),
        (ArrayType(IntegerType()), [None, [1], (1,), np.array([1]), [None], [1.0], [np.int8(1)], {1}, range(3)]),
        (MapType(StringType(), IntegerType()), [None, {"a": 1}, [("a", 1)], {b"a": 1}, (("a", 1),), {}, {"a": None}]),
        (DoubleType(), [None, 1.0, 1, np.float32(1.5), Decimal("1.5"), True, float("nan"), 2**60, np.int64(3)]),
        (IntegerType(), [None, 1, 1.0, True, np.int64(1), np.float64(1), Decimal(1), np.bool_(True), 2**31]),
        (LongType(), [None, 1, 1.0, np.uint64(2**63), np.int64(1), 2**63, -(2**63)]),
        (StringType(), ["a", "é", b"a", None, np.str_("b"), bytearray(b"a"), Text("x"), "\udce9", b"\xff"]),
        (BinaryType(), ["a", "é", b"a", b"\xff", None, bytearray(b"a"), memoryview(b"b")]),
        (DecimalType(10, 2), [Decimal("1.5"), 1, 1.5, Decimal("NaN"), None, Decimal("1.005"), Decimal(10) ** 9]),
        (BooleanType(), [True, np.bool_(False), None, 1]),
        (DateType(), [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), np.datetime64("2020-01-01"), 18_000, None]),
        (TimestampType(), TIMES),
        (TimestampNTZType(), TIMES),
        (DayTimeIntervalType(), [dt.timedelta(1), np.timedelta64(1, "s"), 5, None]),
    ],
    ids=lambda each: each.simpleString() if isinstance(each, DataType) else "",
)
def test_results_that_fit_alone_come_out_the_same_beside_each_other(kind: DataType, results: list[Any]) -> None:
    result_type = ResultType(kind)
    columns = OutcomeColumns(outcome_columns(kind), result_type)
    alone = []
    for result in results:
        try:
            checked, _ = result_type.checked(result)
        except Exception:  # that one's failure  # noqa: S112
            continue
        alone.append((checked, columns.arrays([RowOutcome("ok", 1, checked)])[0]))
    assert len(alone) >= 2
    for (first, of_first), (second, of_second) in product(alone, repeat=2):
        together = columns.arrays([RowOutcome("ok", 1, first), RowOutcome("ok", 1, second)])[0]
        # Of NaN equality is none, and of what is shown it is.
        assert str(together) == str(pa.concat_arrays([of_first, of_second]))


NOON = dt.datetime(2026, 1, 1, 12)
NOON_IN_NEW_YORK = dt.datetime(2026, 1, 1, 17, tzinfo=dt.UTC)


def column_of(kind: DataType, result: Any, zone: str = "America/New_York") -> Any:
    results = ResultType(kind, zone)
    return results.column([results.checked(result)[0]])[0].as_py()


@pytest.mark.parametrize(
    ("kind", "result", "of_column"),
    [
        (TimestampType(), NOON, NOON_IN_NEW_YORK),
        (TimestampType(), pd.Timestamp(NOON), NOON_IN_NEW_YORK),
        (TimestampType(), np.datetime64(NOON), NOON_IN_NEW_YORK),
        (ArrayType(TimestampType()), (NOON, None), [NOON_IN_NEW_YORK, None]),
        (MapType(StringType(), TimestampType()), {"a": NOON}, [("a", NOON_IN_NEW_YORK)]),
        (MapType(TimestampType(), StringType()), {NOON: "a"}, [(NOON_IN_NEW_YORK, "a")]),
        (StructType().add("at", TimestampType()), Row(at=NOON), {"at": NOON_IN_NEW_YORK}),
        (StructType().add("at", ArrayType(TimestampType())), {"at": [NOON]}, {"at": [NOON_IN_NEW_YORK]}),
    ],
)
def test_a_time_without_a_zone_is_one_of_the_session_wherever_it_stands_in_a_result(
    kind: DataType, result: Any, of_column: Any
) -> None:
    assert column_of(kind, result) == of_column


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("+02:00", 2), ("-05:00", -5), ("Asia/Tokyo", 9)])
def test_offsets_and_names_of_zones_are_known(zone: str, hours: int) -> None:
    assert column_of(TimestampType(), NOON, zone) == NOON.replace(tzinfo=dt.UTC) - dt.timedelta(hours=hours)


def test_a_time_without_a_zone_in_a_session_whose_zone_python_does_not_know_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"in the session's time zone GMT\+02:00, which Python does not"):
        ResultType(TimestampType(), "GMT+02:00").checked(NOON)
    results = ResultType(TimestampType(), "GMT+02:00")
    [microseconds] = results.column([results.checked(NOON_IN_NEW_YORK)[0]]).cast(pa.int64()).to_pylist()
    assert microseconds == NOON_IN_NEW_YORK.timestamp() * 1_000_000


@pytest.mark.parametrize("result", [5, dt.date(2026, 1, 1), "noon"])
def test_what_is_no_time_is_no_timestamp(result: Any) -> None:
    for kind in (TimestampType(), TimestampNTZType()):
        with pytest.raises(TypeError, match=f"a timestamp must be a datetime, but it is {type(result).__name__}"):
            ResultType(kind).checked(result)


def test_a_timestamp_without_a_zone_is_what_the_clock_of_its_own_zone_shows_as_in_a_udf() -> None:
    in_new_york = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    for result in (NOON, in_new_york, np.datetime64(NOON)):
        assert column_of(TimestampNTZType(), result) == NOON


def test_what_a_plain_result_is_and_what_arrow_makes_of_it_are_the_same() -> None:
    kind = StructType([StructField("n", LongType()), StructField("s", StringType()), StructField("x", DoubleType())])
    results = ResultType(StructType([StructField("inner", kind), StructField("ok", BooleanType())]))
    value = ({"x": 0.5, "s": "text", "n": 2**62}, True)
    plain, size = results.checked(value)
    assert plain == ((2**62, "text", 0.5), True)
    assert size == len("text")
    assert results.column([plain]).to_pylist() == [{"inner": {"n": 2**62, "s": "text", "x": 0.5}, "ok": True}]
    assert results.column([]).to_pylist() == []


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (pa.array([float("nan"), 0.0, -0.0, -float("nan"), float("inf")]), [0, 1, 1, 0, 2]),
        (pa.array([float("nan"), 0.0, -0.0, float("nan"), 0.1], pa.float32()), [0, 1, 1, 0, 2]),
        (
            pa.array([Decimal("1.10"), Decimal("1.1"), Decimal("-0.00"), Decimal("0"), None], pa.decimal128(38, 10)),
            None,
        ),
    ],
)
def test_rows_whose_keys_are_equal_to_spark_are_handled_in_order(column: pa.Array, keys: list[int] | None) -> None:
    keys = keys or [0, 0, 1, 1, 2]
    running: dict[int, int] = dict.fromkeys(keys, 0)
    came: list[int] = []

    async def call(row: InputRow, context: Context) -> int:
        key = keys[row.number % 5]
        running[key] += 1
        assert running[key] == 1
        await asyncio.sleep(0)
        running[key] -= 1
        came.append(row.number)
        return 0

    columns = outcome_columns(IntegerType())
    number = pa.array(range(200))
    key = pa.concat_arrays([column] * 40)
    for names, arrays in ((["key"], [key]), (["key", "of_all"], [key, pa.repeat(pa.scalar("x"), 200)])):
        came.clear()
        settings = Settings(tuple(names), 100, None, Retries(max_attempts=1), columns)
        batch = pa.RecordBatch.from_arrays([*arrays, number], names=[*names, "number"])
        rows = [row for out in Stage(call, settings).run(iter([batch])) for row in out.to_pylist()]
        assert {row["outcome"] for row in rows} == {"ok"}
        for own in set(keys):
            numbers = [each for each in came if keys[each % 5] == own]
            assert numbers == sorted(numbers)
