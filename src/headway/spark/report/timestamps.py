"""When each record was produced, read and done: the columns that `headway report` looks at."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

PRODUCED, READ, DONE = "produced_at", "read_at", "done_at"


def stamped(records: DataFrame, stage: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What the stage makes of the records, with the times at which each row went in and came out.

    Spark's own `current_timestamp` is the start of the micro-batch, the same for all its rows.
    """
    # The filter keeps every row, and keeps Spark from putting the stamp together with what the stage computes.
    went_in = records.withColumn(READ, now()).where(F.col(READ).isNotNull())
    return stage(went_in).withColumn(DONE, now())


def now() -> Column:
    """The time at which a row is computed, by the clock of the executor."""
    milliseconds = F.reflect(F.lit("java.lang.System"), F.lit("currentTimeMillis"))
    return F.timestamp_millis(milliseconds.cast("long"))
