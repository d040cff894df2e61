"""The figures of a report, from a few records whose times are known."""

from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

from headway.errors import ConfigError
from headway.spark.report import figures
from headway.spark.report.file import write_report
from headway.spark.report.timestamps import stamped

pytestmark = pytest.mark.spark

# Level, and seconds since the epoch at which it was produced, read and done.
RECORDS = [(0, 0.0, 5.0, 5.5), (0, 1.0, 11.0, 12.0), (2, 3.0, 3.2, 3.3), (2, 4.0, 4.1, 4.4), (2, 12.0, 12.1, 12.2)]


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    frame = spark.createDataFrame(RECORDS, "level int, produced double, read double, done double")
    return frame.select(
        "level", *(F.timestamp_seconds(name).alias(f"{name}_at") for name in ("produced", "read", "done"))
    )


def test_each_level_has_its_count_and_its_percentiles(records: DataFrame) -> None:
    low, high = figures.by_level(records).collect()
    assert (low["level"], low["records"], low["queue_p50"], low["queue_max"]) == (0, 2, 5_000, 10_000)
    assert (low["processing_p99"], low["end_to_end_max"]) == (1_000, 11_000)
    assert (high["level"], high["records"], high["queue_p50"], high["end_to_end_p99"]) == (2, 3, 100, 400)


def test_each_window_has_its_throughput(records: DataFrame) -> None:
    rows = figures.by_window(records, 10).collect()
    seen = [(row["level"], row["window"].second, row["per_second"]) for row in rows]
    assert seen == [(0, 0, 0.1), (2, 0, 0.2), (0, 10, 0.1), (2, 10, 0.1)]


@pytest.mark.slow
def test_lag_is_what_was_produced_and_is_not_done(records: DataFrame) -> None:
    rows = figures.lag(records, 5).collect()
    assert [(row["level"], row["window"].second, row["lag"]) for row in rows] == [
        *((0, 0, 2), (2, 0, 0), (0, 5, 1), (0, 10, 0), (2, 10, 0))
    ]


@pytest.mark.slow
def test_a_backlog_of_days_counts_from_the_first_window_in_which_something_was_done(records: DataFrame) -> None:
    old = records.withColumn("produced_at", F.expr("produced_at - interval 3 days"))
    rows = figures.lag(old, 5).collect()
    assert [(row["level"], row["window"].second, row["lag"]) for row in rows] == [
        *((0, 0, 2), (2, 0, 1), (0, 5, 1), (0, 10, 0), (2, 10, 0))
    ]


@pytest.mark.slow
def test_windows_are_as_short_as_sixty_of_them_allow(records: DataFrame) -> None:
    assert figures.window_seconds(records) == 1
    assert (
        figures.window_seconds(records.withColumn("done_at", F.expr("done_at + make_interval(0,0,0,level)"))) == 3_600
    )
    assert figures.window_seconds(records.where("false")) == 1


def test_a_row_is_stamped_when_it_goes_in_and_when_it_comes_out(spark: SparkSession) -> None:
    slow = F.udf(lambda number: __import__("time").sleep(0.05) or number, "long")
    frame = stamped(spark.range(2).coalesce(1), lambda rows: rows.withColumn("id", slow("id")))
    rows = frame.selectExpr("id", "unix_millis(done_at) - unix_millis(read_at) as took").collect()
    assert min(row["took"] for row in rows) >= 50


@pytest.mark.slow
def test_a_page_is_written_even_of_no_records(records: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    records.where("false").write.parquet(str(tmp_path / "none"))
    assert write_report(spark, str(tmp_path / "none"), tmp_path / "none.html") == 0
    assert "No records." in (tmp_path / "none.html").read_text()


@pytest.mark.slow
def test_records_without_level_or_times_and_of_the_year_1_are_left_out_and_counted(
    records: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    odd = [
        records.withColumn("level", F.expr("cast(null as int)")),
        records.withColumn("level", F.lit(-1)),
        *(records.withColumn(name, F.expr("cast(null as timestamp)")) for name in figures.NEEDED[1:]),
        records.withColumn("done_at", F.expr("timestamp '0001-01-01 00:00:00'")),
        records.withColumn("produced_at", F.expr("timestamp '9999-12-31 23:59:59'")),
    ]
    reduce(DataFrame.unionByName, odd, records).coalesce(1).write.parquet(str(tmp_path / "odd"))
    assert write_report(spark, str(tmp_path / "odd"), tmp_path / "page.html") == len(RECORDS)
    assert f"{len(RECORDS) * len(odd)} records are left out: they lack a level" in (tmp_path / "page.html").read_text()


def test_columns_of_another_type_and_damaged_files_are_one_sentence(
    records: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="column `level` is a string, but a report needs an integer"):
        figures.checked_records(records.withColumn("level", F.lit("high")))
    with pytest.raises(ConfigError, match="column `read_at` is a string, but a report needs a timestamp"):
        figures.checked_records(records.withColumn("read_at", F.lit("soon")))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "part-0.parquet").write_bytes(b"PAR1 and nothing that is Parquet")
    with pytest.raises(ConfigError, match="one of its files is damaged"):
        write_report(spark, str(tmp_path / "damaged"), tmp_path / "page.html")


@pytest.mark.slow
def test_times_without_a_zone_and_of_centuries_make_a_page(
    records: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    late = records.unionByName(records.withColumn("done_at", F.expr("timestamp '8000-01-01 00:00:00'")))
    assert figures.window_seconds(late) >= 6_000 * 365 * 86_400 / 60
    zoneless = late.withColumn("done_at", F.expr("cast(done_at as timestamp_ntz)")).coalesce(1)
    zoneless.write.parquet(str(tmp_path / "zoneless"))
    assert write_report(spark, str(tmp_path / "zoneless"), tmp_path / "page.html") == 2 * len(RECORDS)


@pytest.mark.slow
def test_what_is_no_parquet_or_lacks_a_column_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.* cannot be read as Parquet"):
        write_report(spark, str(tmp_path / "missing"), tmp_path / "page.html")
    spark.range(1).write.parquet(str(tmp_path / "ids"))
    with pytest.raises(ConfigError, match=r"have no column `level`. A report needs the columns level, produced_at"):
        write_report(spark, str(tmp_path / "ids"), tmp_path / "page.html")
