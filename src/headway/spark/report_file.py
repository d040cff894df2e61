"""A report of a directory of Parquet, as a file."""

from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from headway.errors import ConfigError
from headway.spark import report
from headway.spark.report_page import Row, page


def write_report(
    spark: SparkSession, parquet: str, output: Path, *, title: str = "Headway report", seconds: int | None = None
) -> int:
    """Write the page; returns how many records it is about. `seconds` is the length of a window.

    Raises `ConfigError` when there is no Parquet at that place, or it lacks a column.
    """
    records = report.check(_read(spark, parquet)).select(*report.NEEDED).cache()
    try:
        size = seconds or report.window_seconds(records)
        levels = _rows(report.by_level(records))
        windows = _rows(report.by_window(records, size))
        lags = _rows(report.lag(records, size))
    finally:
        records.unpersist()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(title, levels, windows, lags, size), encoding="utf-8")
    return sum(int(row["records"]) for row in levels)


def _read(spark: SparkSession, parquet: str) -> DataFrame:
    try:
        return spark.read.parquet(parquet)
    except AnalysisException as error:
        raise ConfigError(
            f"No Parquet can be read at {parquet}. Name the directory that a pipeline wrote, as out/flights."
        ) from error


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.collect()]
