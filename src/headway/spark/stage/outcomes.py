"""The columns that `parallel_map` adds to each row: the result of its handler, the outcome, and the times."""

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
"""The column with the time at which a row is handled again, if its outcome is `later`."""

ERROR = StructType(
    [
        StructField("exception", StringType()),
        StructField("message", StringType()),
        StructField("reason", StringType()),
    ]
)


OBSERVED_STAGE, OBSERVED_OUTPUTS = "headway parallel_map of ", "headway outputs with dead letters in "
"""The prefixes of the names under which a query's progress has the counts of stages and of outputs."""

_numbers = count(1)


def observed_outcomes(rows: DataFrame, handler: str) -> DataFrame:
    """Add counts of the outcomes of a stage to the progress of the query, under `observedMetrics`."""
    kinds = [sf.count_if(sf.col("outcome") == kind).alias(kind) for kind in get_args(Kind)]
    return rows.observe(_unique(OBSERVED_STAGE + handler), *kinds, sf.count_if(sf.col("attempts") > 1).alias("retried"))


def observed_records(rows: DataFrame, dead_letter_topic: str) -> DataFrame:
    """Add the number of records and of dead letters to the progress of the query, under `observedMetrics`.

    The rows have a column `record`, which is null for a row from which no record is made.
    """
    is_letter = sf.col("record.topic") == dead_letter_topic
    return rows.observe(
        _unique(OBSERVED_OUTPUTS + dead_letter_topic),
        sf.count_if(sf.col("record").isNotNull()).alias("records"),
        sf.count_if(is_letter).alias("dead_letters"),
    )


def _unique(name: str) -> str:
    """Add a number to the name, because Spark rejects a second set of metrics with the same name."""
    return f"{name} #{next(_numbers)}"


def outcome_columns(result: DataType, *, later: bool = False) -> StructType:
    """Return the columns that a stage adds to each row. `result` is the type of the handler's results.

    If `later` is True, rows can be handled again later, so the columns include `again_at`.
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
    """The outcome of a row.

    `started` and `done` are the start and the end of the last attempt, in seconds since the epoch. `history` is the
    value of the header that keeps the attempts so far, for the next record that is made from the row. `again_at` is the
    time at which the row is handled again, in seconds since the epoch.
    """

    kind: Kind
    attempts: int = 0
    result: Any = None  # the result, in the form that `ResultType.checked` returns
    size: int = 0  # the size of the result in bytes
    error: tuple[str | None, str | None, str] | None = None
    started: float | None = None
    done: float | None = None
    history: str | None = None
    again_at: float | None = None


def error_value(error: BaseException, reason: str) -> tuple[str, str, str]:
    """Return the value of the column `error` for this error."""
    exception, message = name_and_text(error)
    return clean(exception), clean(message), clean(reason)


class OutcomeColumns:
    """Makes the columns that a stage adds, in Arrow form, from the outcomes of its rows."""

    def __init__(self, columns: StructType, results: ResultType) -> None:
        self.names: list[str] = columns.names
        self._results = results
        self._types = [to_arrow_type(column.dataType, timezone="UTC") for column in columns]

    def arrays(self, outcomes: Sequence[RowOutcome]) -> list[pa.Array]:
        """Return the added columns for the rows with these outcomes."""
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
