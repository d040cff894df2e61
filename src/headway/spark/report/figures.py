"""Computes throughput, waiting times and lag by level from the times at which records were produced, read and done.

Each figure is computed by a function that takes and returns a DataFrame. `headway.spark.report.html` makes a page of
the results.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import ceil
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # Spark's documentation uses this name
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

from headway.core.levels.naming import MOST_LEVELS
from headway.errors import ConfigError
from headway.spark.report.timestamps import DONE, PRODUCED, READ

STAGES: Mapping[str, tuple[str, str]] = {
    "queue": (PRODUCED, READ),
    "processing": (READ, DONE),
    "end_to_end": (PRODUCED, DONE),
}
"""The columns with the start and the end of each duration."""

PERCENTS = (50, 95, 99)
NEEDED = ("level", PRODUCED, READ, DONE)

_TYPES: Sequence[tuple[tuple[type[DataType], ...], str]] = (
    ((TimestampType, TimestampNTZType), "a timestamp"),
    ((ByteType, ShortType, IntegerType, LongType), "an integer"),
)
_LAST_SECOND = 253_370_764_799
"""The last second of the year 9998. Python cannot represent times after the year 9999, whatever the time zone, so later
times are refused one year before that limit."""

_ACCURACY = 1_000  # the error of percentile_approx is at most 1 divided by this number
_MOST_WINDOWS = 60
_SIZES = (1, 2, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 21_600, 86_400)


def checked_records(records: DataFrame) -> DataFrame:
    """Return the records unchanged. Raises `ConfigError` if a column of the report is missing or has another type."""
    missing = [name for name in NEEDED if name not in records.columns]
    if missing:
        raise ConfigError(
            f"The records have no column `{missing[0]}`. A report needs the columns {', '.join(NEEDED)}: the level as "
            "an integer, and the times at which each record was produced, read and done, which "
            "`headway.spark.report.timestamps.stamped` adds."
        )
    for name in NEEDED:
        kind, (kinds, meant) = records.schema[name].dataType, _TYPES[name == "level"]
        if not isinstance(kind, kinds):
            raise ConfigError(
                f"The column `{name}` is a {kind.simpleString()}, but a report needs {meant}. Cast the column before "
                "you write the records."
            )
    return records


def records_with_times(records: DataFrame) -> DataFrame:
    """Return the records whose level is from 0 to 999 and whose three times are in the years 1970 to 9998."""
    given = records.select("level", *(F.col(name).cast("timestamp").alias(name) for name in (PRODUCED, READ, DONE)))
    times = [F.unix_seconds(name).between(0, _LAST_SECOND) for name in (PRODUCED, READ, DONE)]
    return given.where(reduce(and_, times, F.col("level").between(0, MOST_LEVELS - 1)))


def by_level(records: DataFrame) -> DataFrame:
    """Return one row per level, with the number of records and percentiles of each duration in milliseconds."""
    return records.groupBy("level").agg(F.count("*").alias("records"), *_percentiles()).orderBy("level")


def by_window(records: DataFrame, seconds: int) -> DataFrame:
    """Return one row per level and window, with the records per second and percentiles of each duration.

    A record belongs to the window in which it was done.
    """
    window = F.window(DONE, f"{seconds} seconds").getField("start").alias("window")
    return (
        records.groupBy("level", window)
        .agg((F.count("*") / F.lit(seconds)).alias("per_second"), *_percentiles())
        .orderBy("window", "level")
    )


def lag(records: DataFrame, seconds: int) -> DataFrame:
    """Return, for each level and window, how many records had been produced but were not done at the window's end.

    The first window is the first one in which a record was done. Records that were produced earlier count as if they
    had been produced in that window.
    """
    first = records.select(F.min(DONE).alias("first"))
    produced = records.crossJoin(first).withColumn(PRODUCED, F.greatest(PRODUCED, "first"))
    changes = _counts(produced, PRODUCED, seconds, 1).unionByName(_counts(records, DONE, seconds, -1))
    per_window = changes.groupBy("level", "window").agg(F.sum("change").alias("change"))
    until_then = Window.partitionBy("level").orderBy("window")
    return per_window.select("level", "window", F.sum("change").over(until_then).alias("lag")).orderBy(
        "window", "level"
    )


def window_seconds(records: DataFrame) -> int:
    """Return the shortest window length, in seconds, with which at most 60 windows cover all records.

    Each record counts at the time at which it was done. Up to a day, the length is one of `_SIZES`; above that, it is a
    multiple of a day.
    """
    span = records.select(F.unix_seconds(F.max(DONE)) - F.unix_seconds(F.min(DONE))).collect()[0][0] or 0
    days = ceil(span / _MOST_WINDOWS / _SIZES[-1])
    return next((size for size in _SIZES if span / size <= _MOST_WINDOWS), days * _SIZES[-1])


def _percentiles() -> list[Column]:
    columns = []
    for name, (begin, end) in STAGES.items():
        milliseconds = F.unix_millis(end) - F.unix_millis(begin)
        # Spark computes equal expressions only once, so all percentiles come from one digest.
        digest = F.percentile_approx(milliseconds, [p / 100 for p in PERCENTS], _ACCURACY)
        columns += [digest.getItem(index).alias(f"{name}_p{p}") for index, p in enumerate(PERCENTS)]
        columns.append(F.max(milliseconds).alias(f"{name}_max"))
    return columns


def _counts(records: DataFrame, stamp: str, seconds: int, sign: int) -> DataFrame:
    window = F.window(stamp, f"{seconds} seconds").getField("start").alias("window")
    return records.groupBy("level", window).agg((F.count("*") * sign).alias("change"))
