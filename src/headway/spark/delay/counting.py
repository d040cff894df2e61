"""Counts pending schedules by delay topic and due time, and the delays in use."""

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

from headway.core.delay.ladder import rounded


def occupancy(pending: DataFrame) -> DataFrame:
    """Count schedules by delay topic and by the hour in which they are due: `topic_delay_ms`, `hour`, `pending`."""
    hour = F.date_trunc("hour", "due").alias("hour")
    return pending.groupBy("topic_delay_ms", hour).agg(F.count("*").alias("pending")).orderBy("hour", "topic_delay_ms")


def hot_seconds(pending: DataFrame, count: int = 20) -> DataFrame:
    """Return the seconds in which most schedules are due, the fullest first: `second`, `pending`."""
    second = F.date_trunc("second", "due").alias("second")
    seconds = pending.groupBy(second).agg(F.count("*").alias("pending"))
    return seconds.orderBy(F.desc("pending"), "second").limit(count)


def delays(pending: DataFrame) -> dict[int, float]:
    """Count how often each delay in milliseconds is used, rounded to about one percent, as `fit` takes them."""
    milliseconds = F.unix_millis("due") - F.unix_millis("scheduled")
    not_past = F.greatest(milliseconds, F.lit(0))  # negative if a row was already due when it was scheduled
    # Round to seconds first, so that few values go through Python.
    seconds = pending.select(F.round(not_past, -3).alias("delay")).groupBy("delay").count()
    found: Counter[int] = Counter()
    for row in (
        seconds.groupBy(F.udf(rounded, "long", useArrow=False)("delay").alias("delay"))
        .agg(F.sum("count").alias("n"))
        .collect()
    ):
        found[row["delay"]] += row["n"]
    return dict(found)
