"""Writes the HTML report on the records in a directory of Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headway.errors import ConfigError
from headway.spark.report import figures
from headway.spark.report.html import Row, report_page


def write_report(
    spark: SparkSession, parquet: str, output: Path, *, title: str = "Headway report", seconds: int | None = None
) -> int:
    """Write the report as an HTML page to `output`. Returns the number of records that the report includes.

    `seconds` is the length of a window in the plots. The default length depends on how much time the records cover.

    Records that lack a level or a time, or have one outside the allowed range, are left out. The page shows how many
    were left out. Raises `ConfigError` if there are no Parquet files at that path, if one of them is damaged, or if a
    column is missing.
    """
    with _readable(parquet):
        given = figures.checked_records(spark.read.parquet(parquet)).select(*figures.NEEDED)
        there = given.count()
        records = figures.records_with_times(given).cache()
        try:
            size = seconds or figures.window_seconds(records)
            levels = _rows(figures.by_level(records))
            windows = _rows(figures.by_window(records, size))
            lags = _rows(figures.lag(records, size))
        finally:
            records.unpersist()
    count = sum(int(row["records"]) for row in levels)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(report_page(title, levels, windows, lags, size, there - count), encoding="utf-8")
    return count


@contextmanager
def _readable(parquet: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # a file without a footer causes a Py4JJavaError
        raise ConfigError(
            f"{parquet} cannot be read as Parquet. Name the directory that a pipeline wrote, such as out/flights. If "
            "it is the right one, one of its files is damaged."
        ) from error


def _rows(frame: DataFrame) -> list[Row]:
    return [row.asDict() for row in frame.collect()]
