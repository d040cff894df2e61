"""Adds the times at which each record was read and done, in the columns that `headway report` reads."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's documentation uses this name

PRODUCED, READ, DONE = "produced_at", "read_at", "done_at"


def stamped(records: DataFrame, stage: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Apply a stage to the records, and add the times at which each row entered the stage and left it.

    Spark's own `current_timestamp` cannot be used, because it is the start of the micro-batch for all rows.
    """
    # This filter keeps every row. Without it, Spark would compute the timestamp together with the stage.
    went_in = records.withColumn(READ, now()).where(F.col(READ).isNotNull())
    return stage(went_in).withColumn(DONE, now())


def now() -> Column:
    """Return a column with the time at which each row is computed, by the clock of its executor."""
    milliseconds = F.reflect(F.lit("java.lang.System"), F.lit("currentTimeMillis"))
    return F.timestamp_millis(milliseconds.cast("long"))
