"""Finds scheduled records that were lost, duplicated or delivered early, and measures how late deliveries were.

The functions do not need Kafka: they compare DataFrames of scheduled, cancelled and delivered records by an `id`.
"""

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's documentation uses this name

FAULTS = ("never_scheduled", "delivered_though_cancelled", "lost", "duplicated", "early")
"""The verdicts that should not occur. If several apply to a record, the record gets the first of them."""

VERDICTS = ("delivered", "cancelled", "pending", *FAULTS)

_PERCENTS = (50, 95, 99)
_ACCURACY = 10_000


def audit(
    scheduled: DataFrame, delivered: DataFrame, cancelled: DataFrame | None = None, *, until: datetime | None = None
) -> DataFrame:
    """Compare scheduled records with deliveries. Returns one row per id, with a `verdict` and its lateness (`late_ms`).

    The lateness is how many milliseconds after its due time the first copy was delivered. The verdict `delivered` means
    that the record was delivered once and not early. `cancelled` means that it was cancelled and not delivered.
    `pending` means that it was not delivered, and is not due before `until`. The other verdicts are in `FAULTS`.

    Args:
        scheduled: The scheduled records, with the columns `id` and `due`, a timestamp. If an id occurs twice, two
            deliveries are expected: the first delivery is compared with the first due time, and so on.
        delivered: The delivered records, with the columns `id` and `delivered`, the timestamp of the record. With
            message.timestamp.type=LogAppendTime, the timestamp is the time at which the broker stored the record.
        cancelled: The records that were settled as cancelled, with the column `id`.
        until: The time up to which deliveries are expected. By default, this is the current time.
    """
    now = F.current_timestamp() if until is None else F.lit(until)
    expected = scheduled.groupBy("id").agg(
        F.min("due").alias("due"),
        F.count("*").alias("expected"),
        F.count_if(F.col("due") > now).alias("not_due"),
        F.sort_array(F.collect_list("due")).alias("all_due"),
    )
    came = delivered.groupBy("id").agg(
        F.min("delivered").alias("delivered"),
        F.count("*").alias("copies"),
        F.sort_array(F.collect_list("delivered")).alias("all_delivered"),
    )
    gone = _ids(cancelled, scheduled).distinct().withColumn("is_cancelled", F.lit(True))
    joined = expected.join(came, "id", "full_outer").join(gone, "id", "left")
    late = F.unix_millis("delivered") - F.unix_millis("due")
    copies = F.coalesce("copies", F.lit(0)).alias("copies")
    return joined.select("id", "due", "delivered", copies, late.alias("late_ms"), _verdict().alias("verdict"))


def summary(audited: DataFrame) -> DataFrame:
    """Return one row with the number of ids for each verdict, and with percentiles of the lateness in milliseconds.

    The percentiles are the columns `late_p50` to `late_max`.
    """
    counts = [F.count_if(F.col("verdict") == verdict).alias(verdict) for verdict in VERDICTS]
    percentiles = [F.percentile_approx("late_ms", p / 100, _ACCURACY).alias(f"late_p{p}") for p in _PERCENTS]
    return audited.agg(F.count("*").alias("ids"), *counts, *percentiles, F.max("late_ms").alias("late_max"))


def _ids(cancelled: DataFrame | None, scheduled: DataFrame) -> DataFrame:
    return scheduled.select("id").limit(0) if cancelled is None else cancelled.select("id")


def _verdict() -> Column:
    came, expected = F.coalesce("copies", F.lit(0)), F.coalesce("expected", F.lit(0))
    is_cancelled = F.col("is_cancelled").isNotNull()
    return (
        F.when(expected == 0, "never_scheduled")
        .when(is_cancelled & (came == 0), "cancelled")
        .when(is_cancelled, "delivered_though_cancelled")
        .when(came < expected - F.col("not_due"), "lost")
        .when(came > expected, "duplicated")
        .when(F.exists(F.arrays_zip("all_delivered", "all_due"), _is_early), "early")
        .when(came < expected, "pending")
        .otherwise("delivered")
    )


def _is_early(pair: Column) -> Column:
    return pair["all_delivered"] < pair["all_due"]
