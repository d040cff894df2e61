"""`parallel_map`: a handler for each row, thousands of them at a time, in order for each key."""

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
_PLACE = ("topic", "level", "partition")
_PROFILE = "a ResourceProfile of Spark's, as ResourceProfileBuilder().require(…).build gives it, without parentheses"


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
    wait for them. The column `key` counts within its topic, level and partition, where the frame has these columns, as
    in a `ParallelConsumer`. When a row fails for good, the next one of its key starts. Nothing is shuffled: rows that
    must be in order have to be in one partition. Rows from `format("headway")` are, unless it splits partitions; use
    `repartition_by_key` behind one that does. A micro-batch ends when all its rows are done, so the order holds across
    micro-batches.

    The columns added are `result`, `outcome`, `attempts`, `error`, `started`, `done` and `history`. `outcome` is `ok`,
    `failed`, or `expired` for a row whose header said so before its handler was called. With `park_behind_failed` it
    can be `parked`: the row was not handled, because an earlier row of its key failed in the same task. Without it that
    happens only behind a call that does not end. With `later` or a `deadline` it may be `later`, and a column
    `again_at` has the time. `error` has `exception`, `message` and `reason`; `started` and `done` are the times of the
    last attempt. `history` is the header that the row's record has where it goes. `outputs` makes records of all rows:
    results, dead letters, and those that come again. The progress of a query counts the outcomes, in
    `observedMetrics`; `ProgressListener` shows them.

    No row fails its task by what it holds or what its handler returns or raises. A result that is not of the schema's
    type or takes more than 64 MiB makes its row a failed one, and so does a value that its handler reads and Python
    cannot represent. A handler that ends its process, as a library that crashes does, fails its task, and in the end
    the query: `run_workers` sets the record aside instead.

    Spark tries a failed task again with all its rows: handlers are called at least once.

    Args:
        df: The rows, whose columns are the attributes of the row that the handler gets.
        handler: A function, run on threads, or an `async def`; `handler(row, context)` gets the row's context, too.
            It is sent to each Python worker and kept there. Coroutines have one event loop as long as the worker lives,
            so they can reuse the clients that they make.
        schema: The type of the handler's result: a DDL string or a data type. A struct is returned as a dict, a
            tuple or a Row.
        key: The columns that make the key, by which rows are in order; None for no order. Null is a key like any other,
            so rows with a null key run one at a time.
        max_concurrency: How many rows each task handles at a time.
        time_limit: How many seconds a call may take; after that the attempt has failed.
        retries: The times and the number of attempts at a failed row.
        park_behind_failed: Whether the later rows of a key are left unhandled in the task in which one of them failed
            for good. Each of them is then `parked`, and `outputs` makes a dead letter of it.
        later: Whether a handler may raise `RetryLater`; the row comes again after its delay, and attempts are counted
            on. Rows of its key behind it go on meanwhile. The rows need the source's columns, `headers` among them.
        deadline: The seconds that a task may take, from its first rows on. What is not done by then is `later`: calls
            that run are cancelled, and count as attempts if they had at least half of that time; rows that have not
            begun come again at once. The rows of a key come again in their order, and those of the next micro-batch do
            not wait for them. It implies `later`.
        batches: The sizes of batches, as Batches(100, linger=0.1): the handler gets a list of rows of one key, or with
            key=None of any, and a list of contexts if it takes one. It returns a list with a result for each row, or
            one result for all; a `BatchError` names the rows that failed.
        arrow_columns: The columns that a handler of `batches` gets as a `pyarrow.RecordBatch`, in place of a list of
            rows. It returns an Array with a result for each row, or a RecordBatch or Table with the fields of the
            schema as columns.
        adaptive: Start with few calls at a time, grow up to `max_concurrency` while throughput grows, and shrink when
            only the latency does; in each task anew.
        on_time_limit: A function of the row, which gives the result of a row whose call exceeded the `time_limit`: the
            row is then `ok`, and not tried again. It must be quick. If it raises, the attempt has failed with that.
            A call that cannot be interrupted, or that runs at the deadline, is not asked about.
        lifespan: What the calls in each Python worker share, as a database pool: a function that makes a context
            manager, async or not. Calls find what it yields in `context.state`. It starts before the worker's first
            row and ends with the worker's process, which has many tasks one after the other; a killed one ends nothing.
        rate_limit: How many rows may start in a second in all tasks together, wherever they run; retries count. Tasks
            ask the driver for starts, at a port of its own.
        expires_after: The seconds after the timestamp of its record for which a row may be started; by default for
            ever, or as the record's header says. What comes first counts. The rows need the source's column
            `timestamp`.
        priority: The column of numbers whose highest values start first, among the rows that a task has read; null is
            the lowest. A row waits for earlier ones of its key nevertheless. The task reads as far ahead as its memory
            allows.
        profile: The resources of the tasks and of their executors, as GPUs or memory, in a `ResourceProfile` of
            Spark's. Spark takes it on YARN, Kubernetes and a standalone cluster, and ends a query of a local session.

    Raises `ConfigError` for arguments that are out of bounds, for columns that cannot come to Python, as intervals of
    months, and with a key for a source that splits partitions.
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
        _check_column(df, "key", name)
        kind = df.schema[name].dataType
        if not is_key(kind):
            raise ConfigError(
                f"The column {name} is {kind.simpleString()}, which is no key. Name columns of what is in it, as "
                "numbers or strings without a collation."
            )
    return names


def _check_parking(park_behind_failed: bool, key: str | Sequence[str] | None) -> None:
    check_flag("park_behind_failed", park_behind_failed)
    if park_behind_failed and not key:
        raise ConfigError(
            "park_behind_failed is True, and key is None, so no row is behind another one. Name the key, or leave "
            "park_behind_failed out."
        )


def _lane_columns(df: DataFrame, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns by which rows are in order: with the record's `key` also those of its partition in Kafka."""
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
            f"arrow_columns is {shown(given)}; it must name one column or several, as ['value'], or be left out for "
            "rows."
        )
    for name in names:
        _check_column(df, "arrow_columns", name)
        if names.count(name) > 1:
            raise ConfigError(f"arrow_columns names {name} twice. Name each column once.")
    if batches is None:
        raise ConfigError(
            "arrow_columns is given, and no batches whose rows the handler gets. Give these too, as batches=Batches("
            "1000, linger=0.1)."
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
        raise ConfigError(f"The column {name} is {kind.simpleString()}, and a priority is a number. Cast it.")


def _check(df: DataFrame, handler: RowHandler, settings: Settings) -> None:
    check_fields(settings.columns["result"].dataType)
    ResultType(settings.columns["result"].dataType)
    check_whole("max_concurrency", settings.max_concurrency, 1)
    check_kind("retries", settings.retries, Retries, "a Retries, as Retries(max_attempts=5)")
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
                "expires_after counts from the timestamp of each row's record, and the DataFrame has no column "
                'timestamp with times, as format("headway") gives it. Keep that, or leave expires_after out.'
            )
    if settings.on_time_limit is not None:
        check_function("on_time_limit", settings.on_time_limit, ("row",), "It returns a result.")
        if settings.time_limit is None:
            raise ConfigError("on_time_limit is given, and no time_limit that a call could exceed. Give that, too.")
    if settings.batches is not None:
        check_kind("batches", settings.batches, Batches, "Batches, as Batches(100)")
    with_context(handler, *argument_names(settings))  # it raises for one that cannot be called
    if is_generator_function(handler):
        raise ConfigError(f"The handler {called(handler)} yields, and each row has one outcome. Return a list instead.")
    for name in df.columns:
        if name.lower() in settings.columns.names:  # Spark does not tell names apart by their case
            raise ConfigError(f"The DataFrame has a column {name} already, which the stage adds. Rename or drop it.")
