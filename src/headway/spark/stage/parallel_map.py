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
from headway.tracing.tracing import Tracing

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
    tracing: Tracing | None = None,
) -> DataFrame:
    """Call `handler(row)` for each row of a batch or streaming DataFrame, many rows at a time.

    Returns the rows with these columns added:

    - `result`: the result of the handler.
    - `outcome`: `ok` or `failed`; `expired` if the row expired, by its header or by `expires_after`, before its handler
      was called; `parked` if the row was not handled because an earlier row of its key failed in the same task (with
      `park_behind_failed`) or has a call that never ends; `later` if the row is handled again later (with `later` or
      `deadline`).
    - `attempts`: the number of attempts.
    - `error`: a struct of `exception`, `message` and `reason`; null if the outcome is `ok`.
    - `started`, `done`: the start and the end of the last attempt.
    - `history`: the value of the header that keeps the attempts so far, for the next record made from the row.
    - `again_at`: the time at which a row that is `later` is handled again. Only with `later` or `deadline`.

    `outputs` makes Kafka records from all these rows: results, dead letters, and rows that are handled again later. The
    progress of a query counts the outcomes under `observedMetrics`, and `ProgressListener` shows the counts.

    Rows with the same key are handled one after the other, in the order that they have in their Spark partition. Rows
    of different keys do not wait for each other. As in a `ParallelConsumer`, equal values of the column `key` are the
    same key only within a topic, level and partition, if the frame has these columns. If a row fails permanently, the
    next row of its key starts. Nothing is shuffled, so rows that must be in order have to be in one Spark partition.
    The source `format("headway")` ensures this, unless it splits partitions; in that case, call `repartition_by_key`
    first. A micro-batch ends when all its rows are done, so the order also holds across micro-batches.

    A row never fails its task because of its contents, or because of what its handler returns or raises. A row fails if
    its result is not of the schema's type or takes more than 64 MiB, or if its handler reads a value that Python cannot
    represent. Only a handler that ends its process, for example because a library crashes, fails the task, and after
    some attempts the query. `run_workers` sets such a record aside instead.

    Spark runs a failed task again with all its rows, so a handler can be called more than once for a row.

    Args:
        df: The rows. The handler gets each row as an object with the columns as attributes.
        handler: A function, which is called on threads, or an `async def`. If the handler takes a second argument, it
            also gets the row's context. The handler is sent to each Python worker and kept there. All coroutines of a
            worker run in the same event loop until the worker ends, so they can reuse the clients that they create.
        schema: The type of the handler's result: a DDL string or a data type. A struct can be returned as a dict, a
            tuple, a Row or a dataclass.
        key: The columns that make up the key, by which rows are kept in order. If it is None, rows are in no order.
            Null is an ordinary key, so rows with a null key are handled one at a time.
        max_concurrency: How many rows each task handles at a time.
        time_limit: How many seconds a call can take. After that, the attempt has failed.
        retries: When and how often a failed row is tried again.
        park_behind_failed: Whether, after a row has failed permanently, the later rows of its key in the same task are
            left unhandled. Their outcome is then `parked`, and `outputs` makes dead letters of them.
        later: Whether a handler can raise `RetryLater`. The row is then handled again after the delay, and keeps its
            count of attempts. Meanwhile the later rows of its key are handled. The rows need the source's columns,
            including `headers`.
        deadline: How many seconds a task can take, counted from its first rows. Rows that are not done by then are
            `later`. Running calls are cancelled. A cancelled call counts as an attempt only if it began in the first
            half of the task's time. Rows that were not started are handled again at once. The rows of a key are handled
            again in their order, but rows of the next micro-batch do not wait for them. This parameter implies `later`.
        batches: The sizes of batches, such as `Batches(100, linger=0.1)`. The handler then gets a list of rows of one
            key, or of any rows with `key=None`, and a list of contexts if it takes a second argument. The handler
            returns a list with a result for each row, or one result for all rows. To fail only some of the rows, it
            raises a `BatchError` that names them.
        arrow_columns: The columns that a handler of `batches` gets as a `pyarrow.RecordBatch`, in place of a list of
            rows. The handler returns an Array with a result for each row, or a RecordBatch or Table whose columns are
            the fields of the schema.
        adaptive: Whether each task adapts how many rows it handles at a time. The task begins with a few rows. It
            handles more, up to `max_concurrency`, as long as this increases the throughput, and fewer if more rows
            would only increase the latency.
        on_time_limit: A function that is called with the row if its call exceeds the `time_limit`, and that returns the
            row's result. The row is then `ok`, and is not tried again. The function must be quick. If it raises, the
            attempt has failed with that error. The function is not called if the handler cannot be interrupted, or if
            the handler's call is still running at the deadline.
        lifespan: A function that returns a context manager, async or not, for an object that all calls in a Python
            worker share, such as a database pool. Calls find the object that it yields in `context.state`. The context
            manager is entered before the worker's first row, and exited when the worker's process ends, after many
            tasks. It is not exited if the process is killed.
        rate_limit: How many rows can start per second in all tasks together, wherever they run. Retries count too.
            Tasks request permission for each start from the driver, which listens on an additional port for this.
        expires_after: How many seconds after its record's timestamp a row can start. By default there is no such limit.
            If a header of the record also sets an expiry time, the earlier of the two applies. The rows need the
            source's column `timestamp`.
        priority: A column of numbers. Of the rows that a task has read, those with the highest number start first. Null
            is the lowest priority. A row still waits for earlier rows of its key. The task reads as many rows ahead as
            its memory limit permits.
        profile: The resources of the tasks and their executors, such as GPUs or memory, as a `ResourceProfile` of
            Spark. Spark supports it on YARN, Kubernetes and standalone clusters. In a local session, the query fails.
        tracing: A `Tracing` without a provider, to make spans of the calls of the handler. The spans go to the global
            provider of the Python worker, which the `lifespan` can set. They are linked to the spans that have sent the
            records if the rows have the source's column `headers`.

    Raises `ConfigError` if an argument is outside its allowed range, if a column cannot be passed to Python, such as an
    interval of months, or if `key` is given and the source splits partitions.
    """
    _check_tracing(tracing)
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
        tracing=tracing,
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
            df.sparkSession, "rate_limit", "Divide the rate by the number of tasks, and limit it in the handler."
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
        raise ConfigError(
            f"The key is {shown(key)}; it must be the name of a column, a list of names, or None for no order."
        )
    names = (key,) if isinstance(key, str) else tuple(key or ())
    for name in names:
        _check_column(df, "key", name)
        kind = df.schema[name].dataType
        if not is_key(kind):
            raise ConfigError(
                f"The column `{name}` is {kind.simpleString()}, which cannot be a key. Use a column of another type, "
                "such as a number or a string without a collation."
            )
    return names


def _check_parking(park_behind_failed: bool, key: str | Sequence[str] | None) -> None:
    check_flag("park_behind_failed", park_behind_failed)
    if park_behind_failed and not key:
        raise ConfigError(
            "park_behind_failed is True, but key is None, so there are no later rows of a key to park. Set key, or "
            "leave park_behind_failed out."
        )


def _lane_columns(df: DataFrame, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns by which rows are kept in order: the key and, if that is the column `key`, the partition."""
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
            f"arrow_columns is {shown(given)}; it must name one or more columns, such as ['value']. Leave it out if "
            "the handler takes rows."
        )
    for name in names:
        _check_column(df, "arrow_columns", name)
        if names.count(name) > 1:
            raise ConfigError(f"arrow_columns names {name} twice. Name each column once.")
    if batches is None:
        raise ConfigError(
            "arrow_columns needs batches, but batches is not given. Add it, for example "
            "batches=Batches(1000, linger=0.1)."
        )
    return names


def _check_column(df: DataFrame, use: str, name: str) -> None:
    if name not in df.columns:
        near = get_close_matches(name, df.columns, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Its columns are {', '.join(df.columns)}."
        raise ConfigError(f"The DataFrame has no column `{name}` for the {use}. {hint}")


def _check_priority(df: DataFrame, name: str) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"The priority is {shown(name)}; it must be the name of a column, or None.")
    _check_column(df, "priority", name)
    kind = df.schema[name].dataType
    if not isinstance(kind, NumericType):
        raise ConfigError(
            f"The column `{name}` is {kind.simpleString()}, but a priority must be a number. Cast the column."
        )


def _check_retries(retries: Any) -> None:
    check_kind("retries", retries, Retries, "a Retries, such as Retries(max_attempts=5)")
    if retries.then == "hold":
        raise ConfigError(
            "The retries have then='hold', which only a ParallelConsumer or a worker can do: a row has no place to be "
            "held in. Leave out then."
        )


def _check(df: DataFrame, handler: RowHandler, settings: Settings) -> None:
    check_fields(settings.columns["result"].dataType)
    ResultType(settings.columns["result"].dataType)
    check_whole("max_concurrency", settings.max_concurrency, 1)
    _check_retries(settings.retries)
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
                'timestamp with times, as format("headway") gives it. Keep that column, or leave expires_after out.'
            )
    if settings.on_time_limit is not None:
        check_function("on_time_limit", settings.on_time_limit, ("row",), "It returns a result.")
        if settings.time_limit is None:
            raise ConfigError("on_time_limit needs a time_limit, but no time_limit is given. Add one.")
    if settings.batches is not None:
        check_kind("batches", settings.batches, Batches, "Batches, such as Batches(100)")
    with_context(handler, *argument_names(settings))  # raises an error if the handler cannot take these arguments
    if is_generator_function(handler):
        raise ConfigError(
            f"The handler {called(handler)} is a generator, but must return one result for each row. Return a list "
            "instead."
        )
    for name in df.columns:
        if name.lower() in settings.columns.names:  # Spark ignores the case of names
            raise ConfigError(
                f"The DataFrame already has a column `{name}`, but parallel_map adds a column of that name. Rename or "
                "drop it."
            )


def _check_tracing(tracing: Tracing | None) -> None:
    if tracing is not None:
        check_kind("tracing", tracing, Tracing, "a Tracing, such as Tracing()")
        if tracing.provider is not None:
            raise ConfigError(
                "tracing has a provider, which cannot be sent to Spark's Python workers. Leave it out, and set the "
                "global provider of each worker in the lifespan."
            )
