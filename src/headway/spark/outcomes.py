"""What became of each row of a parallel stage: columns beside its own, and dead letters made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
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

from headway.core.retry import FatalError
from headway.letters import PREFIX
from headway.spark.result_type import ResultType, clean, text_of

Kind = Literal["ok", "failed", "parked"]

ERROR = StructType(
    [
        StructField("exception", StringType()),
        StructField("message", StringType()),
        StructField("reason", StringType()),
    ]
)

_CHANGED = "the handler changed its result after it had returned it"
_HEADER = "array<struct<key: string, value: binary>>"


def outcome_columns(result: DataType) -> StructType:
    """The columns that a stage adds to a row; `result` is the type of what its handler returns."""
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
    """What became of a row; `started` and `done`, in seconds since the epoch, are its last attempt's."""

    kind: Kind
    attempts: int = 0
    result: Any = None  # as `ResultType.checked` gives it
    size: int = 0  # of the result, in bytes
    error: tuple[str | None, str | None, str] | None = None
    started: float | None = None
    done: float | None = None


def failure(error: BaseException, reason: str) -> tuple[str, str, str]:
    """Return an error as the columns have it."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return clean(kind), text_of(error), clean(reason)


class OutcomeColumns:
    """The columns that a stage adds, made of outcomes."""

    def __init__(self, columns: StructType, results: ResultType) -> None:
        self._results = results
        self._types = [to_arrow_type(column.dataType, timezone="UTC") for column in columns]

    def arrays(self, outcomes: Sequence[Outcome]) -> list[pa.Array]:
        """Return a column of each kind for these outcomes."""
        try:
            results = self._results.column([outcome.result for outcome in outcomes])
        except Exception:  # a handler has changed what it returned before
            results = pa.concat_arrays([self._alone(outcome) for outcome in outcomes])
        _, kind, attempts, error, started, done = self._types
        return [
            results,
            pa.array([outcome.kind for outcome in outcomes], kind),
            pa.array([outcome.attempts for outcome in outcomes], attempts),
            pa.array([outcome.error for outcome in outcomes], error),
            _timestamps([outcome.started for outcome in outcomes], started),
            _timestamps([outcome.done for outcome in outcomes], done),
        ]

    def _alone(self, outcome: Outcome) -> pa.Array:
        """Return the result of one outcome, which is a failure if there is none any more."""
        try:
            return self._results.column([outcome.result])
        except Exception as error:
            outcome.kind, outcome.result = "failed", None
            outcome.error = failure(FatalError(self._results.refusal(error)), _CHANGED)
            return self._results.column([None])


def _timestamps(seconds: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    microseconds = [None if each is None else round(each * 1_000_000) for each in seconds]
    return pa.array(microseconds, pa.int64()).cast(kind)


def dead_letters(outcomes: DataFrame) -> DataFrame:
    """The rows that failed or were parked, as records for `format("headway")`: key, value and headers.

    The headers are those of a `ParallelConsumer`'s dead letters, so `headway dead` shows them and sends them again; of
    the source's columns, those that are there are used. Name the sink's option `topic`, or add a column.
    """
    columns = set(outcomes.columns)
    place = [name for name in ("partition", "offset") if name in columns]
    story = {
        "exception": sf.col("error.exception"),
        "message": sf.col("error.message"),
        "reason": sf.col("error.reason"),
        "attempts": sf.col("attempts"),
        "last.time": sf.unix_millis("done"),
        **({"topic": _kafka_topic(columns)} if "topic" in columns else {}),
        **{name: sf.col(name) for name in place},
        **({"timestamp": sf.unix_millis("timestamp")} if "timestamp" in columns else {}),
    }
    told = sf.filter(sf.array(*(_header(name, value) for name, value in story.items())), _is_known)
    own = sf.filter(sf.coalesce("headers", sf.array().cast(_HEADER)), _is_own) if "headers" in columns else None
    headers = told if own is None else sf.concat(own, told)
    key = sf.col("key") if "key" in columns else sf.lit(None).cast("binary")
    value = sf.col("value") if "value" in columns else sf.lit(None).cast("binary")
    dead = outcomes.where(sf.col("outcome") != "ok")
    return dead.select(key.alias("key"), value.alias("value"), headers.cast(_HEADER).alias("headers"))


def _kafka_topic(columns: set[str]) -> Column:
    return sf.concat_ws("-", "topic", "level") if "level" in columns else sf.col("topic")


def _header(name: str, value: Column) -> Column:
    return sf.struct(sf.lit(PREFIX + name).alias("key"), sf.encode(value.cast("string"), "UTF-8").alias("value"))


def _is_known(header: Column) -> Column:
    return header["value"].isNotNull()


def _is_own(header: Column) -> Column:
    return ~header["key"].startswith(PREFIX)
