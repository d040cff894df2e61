"""Audits scheduled records against cancelled and delivered ones: any lost, duplicated or early, and how late?

The functions do not depend on Kafka: any DataFrames with an `id` for each record will do.
"""

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

FAULTS = ("never_scheduled", "delivered_though_cancelled", "lost", "duplicated", "early")
"""The verdicts that should not occur. If several apply to a record, the first one counts."""

VERDICTS = ("delivered", "cancelled", "pending", *FAULTS)

_PERCENTS = (50, 95, 99)
_ACCURACY = 10_000


def audit(
    scheduled: DataFrame, delivered: DataFrame, cancelled: DataFrame | None = None, *, until: datetime | None = None
) -> DataFrame:
    """Return one row per id, with a `verdict` and how many milliseconds late its first copy was.

    `delivered` means delivered once and not early; `cancelled` means not delivered; `pending` means not delivered, and
    not due before `until`. For the others see `FAULTS`.

    Args:
        scheduled: `id` and `due`, a timestamp. An id that occurs twice is expected twice, each at its own due time: the
            first delivery is compared with the first due time, and so on.
        delivered: `id` and `delivered`, the timestamp of the record. It is the brokers' own time if the topic has
            message.timestamp.type=LogAppendTime.
        cancelled: `id` of each record that was settled as cancelled.
        until: The time up to which records are expected. By default now.
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
    """Return one row: how many ids have each verdict, and how late they were (`late_p50` … `late_max`) in ms."""
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
