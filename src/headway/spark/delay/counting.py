"""The fill of the delay lines, the due times of their records, and the delays in use."""

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

from headway.core.delay.ladder import rounded


def occupancy(pending: DataFrame) -> DataFrame:
    """Return how many schedules there are by line and by the hour of their due time: `line_ms`, `hour`, `pending`."""
    hour = F.date_trunc("hour", "due").alias("hour")
    return pending.groupBy("line_ms", hour).agg(F.count("*").alias("pending")).orderBy("hour", "line_ms")


def hot_seconds(pending: DataFrame, count: int = 20) -> DataFrame:
    """Return the seconds in which most schedules are due, most first: `second`, `pending`."""
    second = F.date_trunc("second", "due").alias("second")
    seconds = pending.groupBy(second).agg(F.count("*").alias("pending"))
    return seconds.orderBy(F.desc("pending"), "second").limit(count)


def delays(pending: DataFrame) -> dict[int, float]:
    """Return how often each delay is in use, in milliseconds, to about a hundredth, as `fit` takes them."""
    milliseconds = F.unix_millis("due") - F.unix_millis("scheduled")
    not_past = F.greatest(milliseconds, F.lit(0))  # of a row that took longer to be scheduled than it was to wait
    # Seconds first, so that few values go through Python.
    seconds = pending.select(F.round(not_past, -3).alias("delay")).groupBy("delay").count()
    found: Counter[int] = Counter()
    for row in (
        seconds.groupBy(F.udf(rounded, "long", useArrow=False)("delay").alias("delay"))
        .agg(F.sum("count").alias("n"))
        .collect()
    ):
        found[row["delay"]] += row["n"]
    return dict(found)
