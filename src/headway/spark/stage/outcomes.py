"""The outcome of each row of a parallel stage, as columns next to the row's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headway.dead_letters import name_and_text
from headway.spark.stage.result_type import ResultType, clean

Kind = Literal["ok", "failed", "parked", "later", "expired"]
AGAIN_AT = "again_at"
"""The column that says when a row comes back, if its outcome is `later`."""

ERROR = StructType(
    [
        StructField("exception", StringType()),
        StructField("message", StringType()),
        StructField("reason", StringType()),
    ]
)


OBSERVED_STAGE, OBSERVED_OUTPUTS = "headway parallel_map of ", "headway outputs with dead letters in "
"""The prefixes of names in `observedMetrics`, for the counts of stages and of outputs in a query's progress."""

_numbers = count(1)


def observed_outcomes(rows: DataFrame, handler: str) -> DataFrame:
    """Return the rows of a stage, so that the progress of their query counts the outcomes."""
    kinds = [sf.count_if(sf.col("outcome") == kind).alias(kind) for kind in get_args(Kind)]
    return rows.observe(_unique(OBSERVED_STAGE + handler), *kinds, sf.count_if(sf.col("attempts") > 1).alias("retried"))


def observed_records(rows: DataFrame, dead_letter_topic: str) -> DataFrame:
    """Return the rows, whose column `record` can be null, so that their query's progress counts records and letters."""
    is_letter = sf.col("record.topic") == dead_letter_topic
    return rows.observe(
        _unique(OBSERVED_OUTPUTS + dead_letter_topic),
        sf.count_if(sf.col("record").isNotNull()).alias("records"),
        sf.count_if(is_letter).alias("dead_letters"),
    )


def _unique(name: str) -> str:
    """Return the name with a number, because Spark accepts only one set of metrics under a name."""
    return f"{name} #{next(_numbers)}"


def outcome_columns(result: DataType, *, later: bool = False) -> StructType:
    """Return the columns that a stage adds to a row; `result` is the type of its handler's results.

    With `later` rows can come back later, and a column says when.
    """
    columns = StructType(
        [
            StructField("result", result),
            StructField("outcome", StringType(), nullable=False),
            StructField("attempts", IntegerType(), nullable=False),
            StructField("error", ERROR),
            StructField("started", TimestampType()),
            StructField("done", TimestampType()),
            StructField("history", StringType()),
        ]
    )
    return columns.add(AGAIN_AT, TimestampType()) if later else columns


@dataclass(slots=True)
class RowOutcome:
    """The outcome of a row; `started` and `done`, in seconds since the epoch, are those of its last attempt.

    `history` is the header that the row's record carries wherever it goes next. `again_at` is when the row comes back.
    """

    kind: Kind
    attempts: int = 0
    result: Any = None  # in the form that `ResultType.checked` returns
    size: int = 0  # of the result, in bytes
    error: tuple[str | None, str | None, str] | None = None
    started: float | None = None
    done: float | None = None
    history: str | None = None
    again_at: float | None = None


def error_value(error: BaseException, reason: str) -> tuple[str, str, str]:
    """Return an error as a value of the column `error`."""
    exception, message = name_and_text(error)
    return clean(exception), clean(message), clean(reason)


class OutcomeColumns:
    """Makes the columns that a stage adds from the outcomes of its rows."""

    def __init__(self, columns: StructType, results: ResultType) -> None:
        self.names: list[str] = columns.names
        self._results = results
        self._types = [to_arrow_type(column.dataType, timezone="UTC") for column in columns]

    def arrays(self, outcomes: Sequence[RowOutcome]) -> list[pa.Array]:
        """Return the arrays of all added columns for these outcomes."""
        results = self._results.column([outcome.result for outcome in outcomes])
        _, kind, attempts, error, started, done, history, *again_at = self._types
        return [
            results,
            pa.array([outcome.kind for outcome in outcomes], kind),
            pa.array([outcome.attempts for outcome in outcomes], attempts),
            pa.array([outcome.error for outcome in outcomes], error),
            _timestamps([outcome.started for outcome in outcomes], started),
            _timestamps([outcome.done for outcome in outcomes], done),
            pa.array([outcome.history for outcome in outcomes], history),
            *(_timestamps([outcome.again_at for outcome in outcomes], each) for each in again_at),
        ]


def _timestamps(seconds: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    microseconds = [None if each is None else round(each * 1_000_000) for each in seconds]
    return pa.array(microseconds, pa.int64()).cast(kind)
