"""The parameters of a parallel stage, as the driver sends them to its tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import StructType

from headway.core.retry import Retries
from headway.execution.context import Context
from headway.parallel.batches import Batches
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.rate_office import RateLimit
from headway.tracing.tracing import Tracing

RowHandler = (
    Callable[[InputRow, Context], Any]
    | Callable[[InputRow], Any]
    | Callable[[Sequence[InputRow], Sequence[Context]], Any]
    | Callable[[Sequence[InputRow]], Any]
    | Callable[[pa.RecordBatch, Sequence[Context]], Any]
    | Callable[[pa.RecordBatch], Any]
)
"""A handler of rows. With `batches` it gets a list of rows, and with `arrow_columns` it gets a `RecordBatch`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of `parallel_map`, in the form in which they are sent to its tasks."""

    key: tuple[str, ...]  # rows with the same values in these columns are handled in order
    max_concurrency: int
    time_limit: float | None
    retries: Retries
    columns: StructType  # the columns that the stage adds
    park_behind_failed: bool = False  # whether later rows of a key are left unhandled after one row has failed
    level_topics: bool = True  # whether the Kafka topic of a row ends with the row's level
    later: bool = False  # whether rows can be handled again later
    deadline: float | None = None  # a task ends this many seconds after its first rows
    batches: Batches | None = None
    arrow_columns: tuple[str, ...] = ()  # if the handler takes a RecordBatch, its columns
    adaptive: bool = False
    on_time_limit: Callable[[InputRow], Any] | None = None  # returns the result of a row whose call took too long
    priority: str | None = None  # rows with the highest values in this column start first
    expires_after: float | None = None  # a row expires this many seconds after the timestamp of its record
    zone: str = "UTC"  # the session's time zone, in which times without a zone are interpreted
    rate: RateLimit | None = None  # the rate limit that all tasks share
    tracing: Tracing | None = None  # makes spans of the calls of the handler


def argument_names(settings: Settings) -> tuple[str, str]:
    """Return the names of the arguments with which the stage calls its handler."""
    if settings.arrow_columns:
        return "batch", "contexts"
    return ("row", "context") if settings.batches is None else ("rows", "contexts")
