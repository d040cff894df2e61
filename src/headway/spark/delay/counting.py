"""Counts pending schedules by their delay topic, due time and delay."""

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's documentation uses this name

from headway.core.delay.ladder import rounded


def occupancy(pending: DataFrame) -> DataFrame:
    """Count schedules by delay topic and due hour. Returns the columns `topic_delay_ms`, `hour` and `pending`."""
    hour = F.date_trunc("hour", "due").alias("hour")
    return pending.groupBy("topic_delay_ms", hour).agg(F.count("*").alias("pending")).orderBy("hour", "topic_delay_ms")


def hot_seconds(pending: DataFrame, count: int = 20) -> DataFrame:
    """Return the `count` seconds with the most due schedules, busiest first, in the columns `second` and `pending`."""
    second = F.date_trunc("second", "due").alias("second")
    seconds = pending.groupBy(second).agg(F.count("*").alias("pending"))
    return seconds.orderBy(F.desc("pending"), "second").limit(count)


def delays(pending: DataFrame) -> dict[int, float]:
    """Count how many schedules have each delay in milliseconds, for use with `fit`.

    Delays are rounded to about one percent.
    """
    milliseconds = F.unix_millis("due") - F.unix_millis("scheduled")
    not_past = F.greatest(milliseconds, F.lit(0))  # the difference is negative if a row was scheduled after it was due
    # Round to seconds in Spark first, so that Spark passes only a few distinct values to Python.
    seconds = pending.select(F.round(not_past, -3).alias("delay")).groupBy("delay").count()
    found: Counter[int] = Counter()
    for row in (
        seconds.groupBy(F.udf(rounded, "long", useArrow=False)("delay").alias("delay"))
        .agg(F.sum("count").alias("n"))
        .collect()
    ):
        found[row["delay"]] += row["n"]
    return dict(found)
