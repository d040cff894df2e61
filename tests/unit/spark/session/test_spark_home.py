"""The home of Spark from which Python workers import PySpark as it is installed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.spark.session.session import linked_home


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    installed = tmp_path / "pyspark"
    for name in ("bin", "jars", "python/lib"):
        (installed / name).mkdir(parents=True)
    (installed / "worker.py").touch()
    return installed


def test_a_home_has_all_of_spark_but_its_python_archives(spark: Path, tmp_path: Path) -> None:
    home = linked_home(spark, tmp_path / "cache")
    assert {each.name: each.resolve() for each in home.iterdir()} == {
        name: spark / name for name in ("bin", "jars", "worker.py")
    }
    assert linked_home(spark, tmp_path / "cache") == home


def test_processes_that_make_it_at_the_same_time_have_the_same_and_leave_nothing_else(
    spark: Path, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as threads:
        homes = set(threads.map(lambda _: linked_home(spark, tmp_path / "cache"), range(8)))
    assert [*(tmp_path / "cache").iterdir()] == [*homes]


def test_another_installation_has_another_home(spark: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    spark.rename(other)
    spark.mkdir()
    assert linked_home(other, tmp_path / "cache") != linked_home(spark, tmp_path / "cache")
