"""`parallel_map`: calls a handler for each row, thousands at a time, in order for each key."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, NumericType, StructType, TimestampType, _parse_datatype_string

from headway.core.retry import Retries
from headway.declarations import (
    called,
    check_above_zero,
    check_flag,
    check_function,
    check_kind,
    check_whole,
    is_generator_function,
    shown,
)
from headway.delay.due_time import lifetime
from headway.errors import ConfigError
from headway.execution.handlers import with_context
from headway.execution.lifespan import Lifespan, check_lifespan, check_lifespan_of
from headway.parallel.batches import Batches
from headway.spark.session.error_messages import one_sentence
from headway.spark.session.plan_names import shown_as
from headway.spark.session.session_context import context_of
from headway.spark.source.schema import has_level_topics
from headway.spark.stage.arrow_schema import check_comes_as_arrow, check_fields
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.key_order import check_keys_stay_together
from headway.spark.stage.outcomes import observed_outcomes, outcome_columns
from headway.spark.stage.output_records import check_comes_again
from headway.spark.stage.python_worker import kept, pickled
from headway.spark.stage.rate_office import limit_for
from headway.spark.stage.result_type import ResultType
from headway.spark.stage.row_keys import is_key
from headway.spark.stage.settings import RowHandler, Settings, argument_names
from headway.spark.stage.task import Stage

_RETRIES = Retries(max_attempts=3)
_PLACE = ("topic", "level", "partition")  # columns that identify a partition in Kafka
_PROFILE = "a ResourceProfile of Spark's, such as ResourceProfileBuilder().require(…).build gives (without parentheses)"


def parallel_map(
    df: DataFrame,
    handler: RowHandler,
    schema: DataType | str,
    *,
    key: str | Sequence[str] | None,
    max_concurrency: int = 100,
    time_limit: float | None = None,
    retries: Retries = _RETRIES,
    park_behind_failed: bool = False,
    later: bool = False,
    deadline: float | None = None,
    batches: Batches | None = None,
    arrow_columns: str | Sequence[str] | None = None,
    adaptive: bool = False,
    on_time_limit: Callable[[InputRow], Any] | None = None,
    lifespan: Lifespan | None = None,
    rate_limit: float | None = None,
    expires_after: float | None = None,
    priority: str | None = None,
    profile: ResourceProfile | None = None,
) -> DataFrame:
    """Return each row of `df` with the result of `handler(row)`; for batch and streaming DataFrames.

    Rows with the same key are handled one after the other, in their order in their Spark partition; other rows do not
    wait for them. As in a `ParallelConsumer`, the column `key` counts within its topic, level and partition if the
    frame has these columns. When a row fails for good, the next one of its key starts. Nothing is shuffled: rows that
    must be in order have to be in one Spark partition. Rows from `format("headway")` are, unless it splits partitions;
    in that case use `repartition_by_key` first. A micro-batch ends when all its rows are done, so the order holds
    across micro-batches.

    The columns added are `result`, `outcome`, `attempts`, `error`, `started`, `done` and `history`. `outcome` is `ok`,
    `failed`, or `expired` for a row that expired, by its header or by `expires_after`, before its handler was called.
    With `park_behind_failed` it can be `parked`: the row was not handled, because an earlier row of its key failed in
    the same task. Without that parameter, rows are parked only behind a call that never ends. With `later` or a
    `deadline` the outcome can be `later`, and a column `again_at` says when the row comes back. `error` has
    `exception`, `message` and `reason`; `started` and `done` are the times of the last attempt. `history` is the
    header that the row's record carries wherever it goes next. `outputs` makes records of all rows: results, dead
    letters, and rows that come back later. The progress of a query counts the outcomes, in `observedMetrics`;
    `ProgressListener` shows them.

    No row fails its task through its contents, or through what its handler returns or raises. If a result is not of the
    schema's type or takes more than 64 MiB, its row has failed; the same goes for a row whose handler reads a value
    that Python cannot represent. Only a handler that ends its process, for example through a library that crashes,
    fails its task, and in the end the query; `run_workers` sets such a record aside instead.

    Spark runs a failed task again with all its rows, so handlers are called at least once.

    Args:
        df: The rows. The handler gets each with its columns as attributes.
        handler: A function, which runs on threads, or an `async def`; as `handler(row, context)` it also gets the row's
            context. It is sent to each Python worker and kept there. Coroutines have the same event loop as long as the
            worker lives, so they can reuse the clients that they create.
        schema: The type of the handler's result: a DDL string or a data type. A struct is returned as a dict, a tuple,
            a Row or a dataclass.
        key: The columns that make up the key, by which rows are in order; None for no order. Null is an ordinary key,
            so rows with a null key run one at a time.
        max_concurrency: How many rows each task handles at a time.
        time_limit: The seconds that a call may take; after that the attempt has failed.
        retries: When, and how often, a failed row is tried again.
        park_behind_failed: Whether the later rows of a key are left unhandled in the task in which one of them failed
            for good. Each of them is then `parked`, and `outputs` makes a dead letter of it.
        later: Whether a handler may raise `RetryLater`: the row comes back after its delay, with its attempts counted.
            Later rows of its key go on meanwhile. The rows need the source's columns, `headers` among them.
        deadline: The seconds that a task may take, counted from its first rows. Rows that are not done by then are
            `later`: running calls are cancelled, and count as attempts if they had at least half of that time; rows
            that have not begun come back at once. The rows of a key come back in their order, but those of the next
            micro-batch do not wait for them. It implies `later`.
        batches: The sizes of batches, such as `Batches(100, linger=0.1)`. The handler gets a list of rows of one key,
            or of any keys with `key=None`, and a list of contexts if it takes one. It returns a list with a result for
            each row, or one result for all; a `BatchError` names the rows that failed.
        arrow_columns: The columns that a handler of `batches` gets as a `pyarrow.RecordBatch`, in place of a list of
            rows. It returns an Array with a result for each row, or a RecordBatch or Table whose columns are the fields
            of the schema.
        adaptive: Whether each task starts with few calls at a time, grows up to `max_concurrency` while throughput
            grows, and shrinks when only the latency does.
        on_time_limit: A function of the row that gives its result when its call exceeds the `time_limit`: the row is
            then `ok`, and is not tried again. It must be quick. If it raises, the attempt has failed with that error.
            It is not called for a call that cannot be interrupted, nor for one that is still running at the deadline.
        lifespan: What the calls in each Python worker share, such as a database pool: a function that makes a context
            manager, async or not. Calls find what it yields in `context.state`. It starts before the worker's first row
            and ends with the worker's process, which runs many tasks one after the other. A process that is killed
            does not end it.
        rate_limit: How many rows may start in a second in all tasks together, wherever they run; retries count. Tasks
            ask the driver for starts, at a port of its own.
        expires_after: The seconds after a record's timestamp within which its row may start; by default there is no
            such limit. If the record's header sets an expiry, too, the earlier one counts. The rows need the source's
            column `timestamp`.
        priority: The column of numbers whose highest values start first, among the rows that a task has read; null is
            the lowest. A row still waits for earlier ones of its key. The task reads as far ahead as its memory allows.
        profile: The resources of the tasks and their executors, such as GPUs or memory, as Spark's `ResourceProfile`.
            Spark accepts it on YARN, Kubernetes and a standalone cluster; in a local session it ends the query.

    Raises `ConfigError` for arguments that are out of bounds, for columns that cannot come to Python, such as intervals
    of months, and if `key` is given with a source that splits partitions.
    """
    check_comes_as_arrow(df)
    check_flag("later", later)
    _check_parking(park_behind_failed, key)
    settings = Settings(
        key=_lane_columns(df, _key_columns(df, key)),
        park_behind_failed=park_behind_failed,
        max_concurrency=max_concurrency,
        time_limit=time_limit,
        retries=retries,
        columns=outcome_columns(_result_type(schema), later=later or deadline is not None),
        level_topics=has_level_topics(df),
        later=later or deadline is not None,
        deadline=deadline,
        batches=batches,
        arrow_columns=_arrow_columns(df, arrow_columns, batches),
        adaptive=adaptive,
        on_time_limit=on_time_limit,
        expires_after=expires_after,
        priority=priority,
    )
    _check(df, handler, settings)
    if settings.key:
        check_keys_stay_together(df)
    if lifespan is not None:
        check_lifespan(lifespan, has_settings=False)
        check_lifespan_of(lifespan, handler)
    if profile is not None:
        check_kind("profile", profile, ResourceProfile, _PROFILE)
    if rate_limit is not None:
        check_above_zero("rate_limit", rate_limit)
        context = context_of(
            df.sparkSession, "rate_limit", "Divide the rate by your tasks, and limit it in the handler."
        )
        settings = replace(settings, rate=limit_for(float(rate_limit), context))
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    settings = replace(settings, zone=zone or settings.zone)
    run = shown_as(f"headway parallel_map of {_short(handler)}", _run_stage(pickled(handler, lifespan), settings))
    rows = df.mapInArrow(run, StructType([*df.schema.fields, *settings.columns.fields]), profile=profile)
    return observed_outcomes(rows, _short(handler))


def _short(handler: RowHandler) -> str:
    return called(handler).rpartition(".<locals>.")[2]


def _run_stage(form: bytes, settings: Settings) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_sentence():
            here = kept(form)
            yield from Stage(here.handler, settings, here.shared).run(batches)

    return run


def _result_type(schema: object) -> DataType:
    if isinstance(schema, DataType):
        return schema
    if not isinstance(schema, str):
        raise ConfigError(f"The schema is {shown(schema)}; it must be a Spark type or a text such as 'name string'.")
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
        _check_column(df, "key", name)
        kind = df.schema[name].dataType
        if not is_key(kind):
            raise ConfigError(
                f"The column {name} is {kind.simpleString()}, which cannot be a key. Name columns of its parts, such "
                "as numbers or strings without a collation."
            )
    return names


def _check_parking(park_behind_failed: bool, key: str | Sequence[str] | None) -> None:
    check_flag("park_behind_failed", park_behind_failed)
    if park_behind_failed and not key:
        raise ConfigError(
            "park_behind_failed is True, but key is None, so no row is behind another one. Name the key, or leave "
            "park_behind_failed out."
        )


def _lane_columns(df: DataFrame, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns by which rows are in order. The key of a record only counts within its partition in Kafka."""
    if "key" not in key or not {"topic", "partition"} <= set(df.columns):
        return key
    place = [name for name in _PLACE if name in df.columns and is_key(df.schema[name].dataType)]
    return (*key, *(name for name in place if name not in key))


def _arrow_columns(df: DataFrame, given: str | Sequence[str] | None, batches: Batches | None) -> tuple[str, ...]:
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"arrow_columns is {shown(given)}; it must name one or several columns, such as ['value']. Leave it out to "
            "get rows."
        )
    for name in names:
        _check_column(df, "arrow_columns", name)
        if names.count(name) > 1:
            raise ConfigError(f"arrow_columns names {name} twice. Name each column once.")
    if batches is None:
        raise ConfigError(
            "arrow_columns is given, but not batches, whose rows the handler would get. Add it, for example "
            "batches=Batches(1000, linger=0.1)."
        )
    return names


def _check_column(df: DataFrame, use: str, name: str) -> None:
    if name not in df.columns:
        near = get_close_matches(name, df.columns, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(df.columns)}."
        raise ConfigError(f"The DataFrame has no column {name} for the {use}. {hint}")


def _check_priority(df: DataFrame, name: str) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"The priority is {shown(name)}; it must be the name of a column, or None.")
    _check_column(df, "priority", name)
    kind = df.schema[name].dataType
    if not isinstance(kind, NumericType):
        raise ConfigError(f"The column {name} is {kind.simpleString()}, but a priority is a number. Cast it.")


def _check(df: DataFrame, handler: RowHandler, settings: Settings) -> None:
    check_fields(settings.columns["result"].dataType)
    ResultType(settings.columns["result"].dataType)
    check_whole("max_concurrency", settings.max_concurrency, 1)
    check_kind("retries", settings.retries, Retries, "a Retries, such as Retries(max_attempts=5)")
    if settings.time_limit is not None:
        check_above_zero("time_limit", settings.time_limit)
    if settings.deadline is not None:
        check_above_zero("deadline", settings.deadline)
    if settings.later:
        check_comes_again(df)
    check_flag("adaptive", settings.adaptive)
    if settings.priority is not None:
        _check_priority(df, settings.priority)
    if settings.expires_after is not None:
        check_above_zero("expires_after", settings.expires_after)
        lifetime(settings.expires_after)
        if not ("timestamp" in df.columns and isinstance(df.schema["timestamp"].dataType, TimestampType)):
            raise ConfigError(
                "expires_after counts from the timestamp of each row's record, but the DataFrame has no column "
                'timestamp with times, as format("headway") gives it. Keep that, or leave expires_after out.'
            )
    if settings.on_time_limit is not None:
        check_function("on_time_limit", settings.on_time_limit, ("row",), "It returns a result.")
        if settings.time_limit is None:
            raise ConfigError("on_time_limit is given, but no time_limit that a call could exceed. Give that, too.")
    if settings.batches is not None:
        check_kind("batches", settings.batches, Batches, "Batches, such as Batches(100)")
    with_context(handler, *argument_names(settings))  # raises for a handler that cannot be called with these
    if is_generator_function(handler):
        raise ConfigError(f"The handler {called(handler)} yields, but each row has one outcome. Return a list instead.")
    for name in df.columns:
        if name.lower() in settings.columns.names:  # Spark does not tell names apart by their case
            raise ConfigError(f"The DataFrame already has a column {name}, which the stage adds. Rename or drop it.")
