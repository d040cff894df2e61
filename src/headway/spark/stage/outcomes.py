"""The outcome of each row of a parallel stage, as columns beside the row's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headway.core.user_errors import kind_of
from headway.spark.stage.result_type import ResultType, clean, text_of

Kind = Literal["ok", "failed", "parked"]

ERROR = StructType(
    [
        StructField("exception", StringType()),
        StructField("message", StringType()),
        StructField("reason", StringType()),
    ]
)


def outcome_columns(result: DataType) -> StructType:
    """Return the columns that a stage adds to a row; `result` is the type of its handler's results."""
    return StructType(
        [
            StructField("result", result),
            StructField("outcome", StringType(), nullable=False),
            StructField("attempts", IntegerType(), nullable=False),
            StructField("error", ERROR),
            StructField("started", TimestampType()),
            StructField("done", TimestampType()),
        ]
    )


@dataclass(slots=True)
class Outcome:
    """The outcome of a row; `started` and `done`, in seconds since the epoch, are its last attempt's."""

    kind: Kind
    attempts: int = 0
    result: Any = None  # in the form that `ResultType.checked` returns
    size: int = 0  # of the result, in bytes
    error: tuple[str | None, str | None, str] | None = None
    started: float | None = None
    done: float | None = None


def failure(error: BaseException, reason: str) -> tuple[str, str, str]:
    """Return an error in the form of the column `error`."""
    return clean(kind_of(error)), text_of(error), clean(reason)


class OutcomeColumns:
    """The columns that a stage adds, made of outcomes."""

    def __init__(self, columns: StructType, results: ResultType) -> None:
        self._results = results
        self._types = [to_arrow_type(column.dataType, timezone="UTC") for column in columns]

    def arrays(self, outcomes: Sequence[Outcome]) -> list[pa.Array]:
        """Return the arrays of all added columns for these outcomes."""
        results = self._results.column([outcome.result for outcome in outcomes])
        _, kind, attempts, error, started, done = self._types
        return [
            results,
            pa.array([outcome.kind for outcome in outcomes], kind),
            pa.array([outcome.attempts for outcome in outcomes], attempts),
            pa.array([outcome.error for outcome in outcomes], error),
            _timestamps([outcome.started for outcome in outcomes], started),
            _timestamps([outcome.done for outcome in outcomes], done),
        ]


def _timestamps(seconds: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    microseconds = [None if each is None else round(each * 1_000_000) for each in seconds]
    return pa.array(microseconds, pa.int64()).cast(kind)
