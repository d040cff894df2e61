"""The row that a handler of a parallel stage gets."""

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType, VariantType, VariantVal

from headway.records.history import HEADER, History, Origin
from headway.spark.stage.input_row import ColumnValues, InputRow, shrunk

DUE = datetime(2030, 1, 1, tzinfo=UTC)
BATCH = pa.RecordBatch.from_pydict({"key": ["a", "b"], "due": [DUE, DUE], "names": [[1], None]})


def rows(batch: pa.RecordBatch = BATCH) -> tuple[ColumnValues, list[InputRow]]:
    columns = ColumnValues(batch)
    return columns, [InputRow(columns, index) for index in range(batch.num_rows)]


def test_columns_are_attributes_and_items() -> None:
    _, (first, second) = rows()
    assert (first.key, first.due, first.names, second["key"], second["names"]) == ("a", DUE, [1], "b", None)
    assert second.asDict() == {"key": "b", "due": DUE, "names": None}


def test_only_what_is_read_is_made() -> None:
    columns, (first, second) = rows()
    assert (first.key, second.key) == ("a", "b")
    assert columns.keys() == {"key"}


def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    _, (row, _) = rows()
    with pytest.raises(AttributeError, match=r"no column `kye`. It has key, due, names\."):
        _ = row.kye
    with pytest.raises(KeyError):
        _ = row["kye"]
    assert getattr(row, "kye", None) is None


def test_of_columns_with_the_same_name_the_first_is_read() -> None:
    _, (row,) = rows(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["key", "key"]))
    assert row.key == 1


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))])  # noqa: S301
def test_a_copy_is_a_row_of_spark_that_does_without_the_batch(of: Any) -> None:
    _, (row, _) = rows()
    copied = of(row)
    assert isinstance(copied, Row)
    assert copied == Row(key="a", due=DUE, names=[1])


def test_values_are_those_that_udfs_get_also_within_others() -> None:
    """Maps are dicts, structs are rows, and a VARIANT is a `VariantVal`, where Arrow has lists of pairs and dicts."""
    variant = VariantVal.parseJson('{"a": 1}')
    inner = StructType().add("name", StringType()).add("about", VariantType())
    kind = StructType()
    kind.add("counts", MapType(StringType(), IntegerType())).add("about", VariantType()).add("inner", inner)
    kind.add("each", ArrayType(inner)).add("by", MapType(StructType().add("n", IntegerType()), ArrayType(inner)))
    kind.add("numbers", ArrayType(IntegerType()))
    arrow = {"name": "x", "about": {"value": variant.value, "metadata": variant.metadata}}
    values = {"counts": [("a", 1)], "about": arrow["about"], "inner": arrow, "each": [arrow, None]}
    rows_of_arrow = [{**values, "by": [({"n": 1}, [arrow])], "numbers": [1]}, dict.fromkeys(kind.names)]
    _, (row, nulls) = rows(pa.RecordBatch.from_pylist(rows_of_arrow, pa.schema(list(to_arrow_type(kind)))))

    assert (row.counts, row.numbers) == ({"a": 1}, [1])
    assert isinstance(row.about, VariantVal)
    assert row.about.toPython() == {"a": 1}
    assert isinstance(row.inner, Row)
    assert (row.inner.name, row.inner["name"], row.inner.about.toJson()) == ("x", "x", '{"a":1}')
    assert [each and each.name for each in row.each] == ["x", None]
    [(by, [of_it])] = row.by.items()
    assert (by, of_it.name) == (Row(n=1), "x")
    assert set(nulls.asDict().values()) == {None}


def test_headers_can_be_read_as_pairs_as_those_of_a_consumer_record() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    _, (row,) = rows(pa.RecordBatch.from_arrays([pa.array([[("kind", b"new")]], pa.list_(header))], names=["headers"]))
    assert dict(row.headers) == {"kind": b"new"}
    assert [name for name, _ in row.headers] == ["kind"]


def test_a_value_within_another_that_cannot_be_read_raises_for_its_row_alone() -> None:
    text = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())
    _, (first, second) = rows(pa.RecordBatch.from_arrays([pa.StructArray.from_arrays([text], ["text"])], ["inner"]))
    assert first.inner.text == "ok"
    with pytest.raises(UnicodeDecodeError):
        _ = second.inner


def test_its_repr_names_the_columns_and_tells_nothing_of_what_is_in_them() -> None:
    _, (row, _) = rows()
    assert repr(row) == "InputRow of key, due, names"


RECORDS = pa.RecordBatch.from_pylist(
    [
        {"topic": "orders", "level": 2, "partition": 1, "offset": 7, "key": b"k", "value": b"v", "headers": None},
        {
            "topic": "orders",
            "level": 2,
            "partition": 1,
            "offset": 8,
            "key": None,
            "value": b"w",
            "headers": [{"key": HEADER, "value": History("orders-2", Origin("orders-2", 0, 3)).header()[1]}],
        },
    ]
)


def test_a_row_of_the_source_has_what_a_record_has() -> None:
    _, (first, second) = rows(RECORDS)
    assert (first.kafka_topic, first.raw_key, first.raw_value) == ("orders-2", b"k", b"v")
    assert str(first.origin) == "orders-2-1-7"
    assert second.origin == second.record_origin() == Origin("orders-2", 0, 3)


def test_without_levels_the_topic_is_kafkas_own_whatever_its_priority() -> None:
    columns = ColumnValues(RECORDS, level_topics=False)
    assert str(InputRow(columns, 0).origin) == "orders-1-7"
    left = [InputRow(columns, 0)]
    shrunk(RECORDS.slice(0, 1), left)
    assert left[0].kafka_topic == "orders"


@pytest.mark.parametrize(
    "columns",
    [
        {"topic": ["orders"], "partition": [None], "offset": [1]},
        {"topic": [1], "partition": [1], "offset": [1]},
        {"topic": ["orders"], "partition": [1], "offset": ["1"]},
        {"topic": [["orders"]], "partition": [-1], "offset": [1], "headers": [7]},
        {"topic": ["orders"], "partition": [1]},
    ],
)
def test_columns_that_are_no_records_give_no_origin(columns: dict[str, Any]) -> None:
    _, (row,) = rows(pa.RecordBatch.from_pydict(columns))
    assert row.record_origin() is None
    with pytest.raises(AttributeError, match="no column `origin`"):
        _ = row.origin


@pytest.mark.parametrize("headers", [[5], [[None]], [[{"key": None, "value": b""}]], [[{"name": HEADER}]]])
def test_headers_that_are_none_leave_a_row_its_own_place(headers: list[Any]) -> None:
    columns = {"topic": ["orders"], "partition": [0], "offset": [1], "headers": headers}
    _, (row,) = rows(pa.RecordBatch.from_pydict(columns))
    assert row.origin == Origin("orders", 0, 1)


def test_a_column_of_the_users_comes_before_what_a_record_has() -> None:
    columns = {"topic": ["flights"], "partition": [0], "offset": [1], "origin": ["JFK"]}
    _, (row,) = rows(pa.RecordBatch.from_pydict(columns))
    assert (row.origin, str(row.record_origin())) == ("JFK", "flights-0-1")
