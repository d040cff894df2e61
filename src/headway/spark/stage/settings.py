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

RowHandler = (
    Callable[[InputRow, Context], Any]
    | Callable[[InputRow], Any]
    | Callable[[Sequence[InputRow], Sequence[Context]], Any]
    | Callable[[Sequence[InputRow]], Any]
    | Callable[[pa.RecordBatch, Sequence[Context]], Any]
    | Callable[[pa.RecordBatch], Any]
)
"""A handler of rows; with `batches` it gets lists of rows, and with `arrow_columns` a `RecordBatch` of them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters that say how a stage handles its rows."""

    key: tuple[str, ...]  # rows with the same values in these columns are handled in order
    max_concurrency: int
    time_limit: float | None
    retries: Retries
    columns: StructType  # the columns that the stage adds
    park_behind_failed: bool = False  # whether later rows of a key are left unhandled after one has failed
    level_topics: bool = True  # whether the Kafka topic of a row ends with its level
    later: bool = False  # whether rows can come back later
    deadline: float | None = None  # seconds from the first rows of the task
    batches: Batches | None = None
    arrow_columns: tuple[str, ...] = ()  # of the Arrow batches that the handler gets in place of lists of rows
    adaptive: bool = False
    on_time_limit: Callable[[InputRow], Any] | None = None  # gives the result of a row whose call took too long
    priority: str | None = None  # the column whose highest values start first
    expires_after: float | None = None  # seconds after the timestamp of a row's record
    zone: str = "UTC"  # the session's time zone, which results without a zone are in
    rate: RateLimit | None = None  # shared by all tasks


def argument_names(settings: Settings) -> tuple[str, str]:
    """Return the names of a handler's arguments."""
    if settings.arrow_columns:
        return "batch", "contexts"
    return ("row", "context") if settings.batches is None else ("rows", "contexts")
