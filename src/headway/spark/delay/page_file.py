"""Writes the page about a scheduler's delay lines to a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headway.core.delay.ladder import fit
from headway.delay.pending import layout_of
from headway.delay.topic_names import DEFAULT_NAME
from headway.spark.delay.counting import delays, hot_seconds, occupancy
from headway.spark.delay.page import page
from headway.spark.delay.reading import pending
from headway.spark.report.html import Row

_LINES = 8


def write_occupancy(
    spark: SparkSession, config: Mapping[str, Any], output: Path, name: str = DEFAULT_NAME, lines: int = _LINES
) -> int:
    """Write the page, proposing at most `lines` lines. Returns how many schedules are pending. Reads them once.

    Raises `ConfigError` if the scheduler has no topics.
    """
    there = pending(spark, config, name).select("line_ms", "due", "scheduled").cache()
    try:
        counted, hottest, in_use = _rows(occupancy(there)), _rows(hot_seconds(there)), delays(there)
    finally:
        there.unpersist()
    ladders = {"in use": layout_of(config, name).ladder}
    if in_use:
        ladders["proposed"] = fit(in_use, lines)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(f"Pending schedules of {name}", counted, hottest, in_use, ladders), encoding="utf-8")
    return sum(int(row["pending"]) for row in counted)


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.collect()]
