"""The row that a handler of a parallel stage gets."""

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row

from headway.spark.stage.input_row import Columns, InputRow

DUE = datetime(2030, 1, 1, tzinfo=UTC)
BATCH = pa.RecordBatch.from_pydict({"key": ["a", "b"], "due": [DUE, DUE], "names": [[1], None]})


def rows(batch: pa.RecordBatch = BATCH) -> tuple[Columns, list[InputRow]]:
    columns = Columns(batch)
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
    with pytest.raises(AttributeError, match=r"no column kye. It has key, due, names\."):
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


def test_its_repr_names_the_columns_and_tells_nothing_of_what_is_in_them() -> None:
    _, (row, _) = rows()
    assert repr(row) == "InputRow of key, due, names"
