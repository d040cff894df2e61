"""`parallel_map`: a handler for each row, thousands of them at a time, in order for each key."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from headway.core.retry import Retries
from headway.declarations import called, check_above_zero, check_kind, check_whole, is_generator_function, shown
from headway.errors import ConfigError
from headway.execution.handlers import with_context
from headway.spark.session.error_messages import one_sentence
from headway.spark.stage.key_order import check_keys_stay_together
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.result_type import ResultType
from headway.spark.stage.row_keys import is_key
from headway.spark.stage.task import RowHandler, Settings, Stage

_RETRIES = Retries(max_attempts=3)
_KEPT_HANDLERS = 8


def parallel_map(
    df: DataFrame,
    handler: RowHandler,
    schema: DataType | str,
    *,
    key: str | Sequence[str] | None,
    max_concurrency: int = 100,
    time_limit: float | None = None,
    retries: Retries = _RETRIES,
) -> DataFrame:
    """Return each row of `df` with the result of `handler(row)`; for batch and streaming DataFrames.

    Rows with the same key are handled one after the other, in their order in their Spark partition; other rows do not
    wait for them. Nothing is shuffled: rows that must be in order have to be in one partition. Rows from
    `format("headway")` are, unless it splits partitions; use `repartition_by_key` behind one that does. A micro-batch
    ends when all its rows are done, so the order holds across micro-batches.

    The columns added are `result`, `outcome`, `attempts`, `error`, `started` and `done`. `outcome` is `ok`, `failed`,
    or `parked`: a parked row was not handled, since an earlier row of its key failed in the same task. `error` has
    `exception`, `message` and `reason`; `started` and `done` are the times of the last attempt. `outputs` makes
    records of all rows, with dead letters for rows that are not ok.

    No row fails its task, whatever its content. A result that is not of the schema's type makes its row a failed one,
    and so does a value that its handler reads and Python cannot represent.

    Spark tries a failed task again with all its rows: handlers are called at least once.

    Args:
        df: The rows, whose columns are the attributes of the row that the handler gets.
        handler: A function, run on threads, or an `async def`; `handler(row, context)` gets the row's context, too.
            It is sent to each Python worker and kept there. Coroutines have one event loop as long as the worker lives,
            so they can reuse the clients that they make.
        schema: The type of the handler's result: a DDL string or a data type. A struct is returned as a dict, a
            tuple or a Row.
        key: The columns that make the key, by which rows are in order; None for no order.
        max_concurrency: How many rows each task handles at a time.
        time_limit: How many seconds a call may take; after that the attempt has failed.
        retries: The times and the number of attempts at a failed row.

    Raises `ConfigError` for arguments that are out of bounds, and with a key for a source that splits partitions.
    """
    settings = Settings(
        key=_key_columns(df, key),
        max_concurrency=max_concurrency,
        time_limit=time_limit,
        retries=retries,
        columns=outcome_columns(_result_type(schema)),
    )
    _check(df, handler, settings)
    if settings.key:
        check_keys_stay_together(df)
    run = _run_stage(cloudpickle.dumps(handler), settings)  # type: ignore[no-untyped-call]
    return df.mapInArrow(run, StructType([*df.schema.fields, *settings.columns.fields]))


def _run_stage(handler: bytes, settings: Settings) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_sentence():
            yield from Stage(_unpickled(handler), settings).run(batches)

    return run


@lru_cache(maxsize=_KEPT_HANDLERS)
def _unpickled(handler: bytes) -> RowHandler:
    """Return the handler, the same one for all tasks of this Python worker. Its bytes come from the driver."""
    return cloudpickle.loads(handler)  # type: ignore[no-any-return]


def _result_type(schema: object) -> DataType:
    if isinstance(schema, DataType):
        return schema
    if not isinstance(schema, str):
        raise ConfigError(f"The schema is {shown(schema)}; it must be a type of Spark's or text, as 'name string'.")
    try:
        return _parse_datatype_string(schema)
    except PySparkException as error:
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(f"The schema is {shown(schema)}, which Spark cannot read: {why}") from error


def _key_columns(df: DataFrame, key: str | Sequence[str] | None) -> tuple[str, ...]:
    if not isinstance(key, str | Sequence | None):
        raise ConfigError(f"The key is {shown(key)}; it must be the name of a column, several, or None for no order.")
    names = (key,) if isinstance(key, str) else tuple(key or ())
    for name in names:
        if name not in df.columns:
            near = get_close_matches(name, df.columns, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(df.columns)}."
            raise ConfigError(f"The DataFrame has no column {name} for the key. {hint}")
        kind = df.schema[name].dataType
        if not is_key(kind):
            raise ConfigError(
                f"The column {name} is {kind.simpleString()}, which is no key. Name columns of what is in it, as "
                "numbers or strings without a collation."
            )
    return names


def _check(df: DataFrame, handler: RowHandler, settings: Settings) -> None:
    ResultType(settings.columns["result"].dataType)
    check_whole("max_concurrency", settings.max_concurrency, 1)
    check_kind("retries", settings.retries, Retries, "a Retries, as Retries(max_attempts=5)")
    if settings.time_limit is not None:
        check_above_zero("time_limit", settings.time_limit)
    with_context(handler, "row")  # it raises for one that cannot be called
    if is_generator_function(handler):
        raise ConfigError(f"The handler {called(handler)} yields, and each row has one outcome. Return a list instead.")
    for name in settings.columns.names:
        if name in df.columns:
            raise ConfigError(f"The DataFrame has a column {name} already, which the stage adds. Rename or drop it.")
