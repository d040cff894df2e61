"""The parameters of a parallel stage, as its tasks get them from the driver."""

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

RowHandler = (
    Callable[[InputRow, Context], Any]
    | Callable[[InputRow], Any]
    | Callable[[Sequence[InputRow], Sequence[Context]], Any]
    | Callable[[Sequence[InputRow]], Any]
    | Callable[[pa.RecordBatch, Sequence[Context]], Any]
    | Callable[[pa.RecordBatch], Any]
)
"""A handler of rows, with `batches` of lists of rows, or with `arrow_columns` of a `RecordBatch` of them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters by which a stage handles its rows."""

    key: tuple[str, ...]  # the columns whose rows of the same values are in order
    max_concurrency: int
    time_limit: float | None
    retries: Retries
    columns: StructType  # the columns that the stage adds
    park_behind_failed: bool = False  # whether a failed row keeps the later ones of its key from being handled
    level_topics: bool = True  # whether the Kafka topic of a row has its level at the end
    later: bool = False  # whether rows may come again
    deadline: float | None = None  # seconds from the first rows of the task
    batches: Batches | None = None
    arrow_columns: tuple[str, ...] = ()  # of the Arrow batches that the handler gets in place of lists of rows
    adaptive: bool = False
    on_time_limit: Callable[[InputRow], Any] | None = None  # gives the result of a row whose call took too long
    priority: str | None = None  # the column whose highest values start first
    expires_after: float | None = None  # seconds after the timestamp of a row's record
    zone: str = "UTC"  # the session's time zone, that of results without one
    rate: RateLimit | None = None  # of all tasks together


def argument_names(settings: Settings) -> tuple[str, str]:
    """Return what a handler's arguments are called."""
    if settings.arrow_columns:
        return "batch", "contexts"
    return ("row", "context") if settings.batches is None else ("rows", "contexts")
