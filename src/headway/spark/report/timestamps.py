"""Adds the times at which each record was produced, read and done: the columns that `headway report` reads."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

PRODUCED, READ, DONE = "produced_at", "read_at", "done_at"


def stamped(records: DataFrame, stage: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Apply a stage to the records, adding the times at which each row went in and came out.

    Spark's own `current_timestamp` is the start of the micro-batch, the same for all its rows.
    """
    # The filter keeps every row; it only keeps Spark from merging the timestamp with the stage's computation.
    went_in = records.withColumn(READ, now()).where(F.col(READ).isNotNull())
    return stage(went_in).withColumn(DONE, now())


def now() -> Column:
    """Return a column with the time at which a row is computed, by the executor's clock."""
    milliseconds = F.reflect(F.lit("java.lang.System"), F.lit("currentTimeMillis"))
    return F.timestamp_millis(milliseconds.cast("long"))
