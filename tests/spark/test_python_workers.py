"""The Python processes that Spark starts."""

from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

pytestmark = pytest.mark.spark


def test_python_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    @sf.udf("string", useArrow=False)
    def place(_: int) -> str:
        import pyspark  # noqa: PLC0415 - it is about the worker's

        return str(pyspark.__file__)

    found = spark.range(1).select(place("id")).collect()[0][0]
    assert Path(found) == Path(pyspark.__file__)


def test_a_python_worker_has_what_tasks_import_before_it_has_a_task(spark: SparkSession) -> None:
    @sf.udf("boolean", useArrow=False)
    def is_warm(_: int) -> bool:
        import sys  # noqa: PLC0415 - it is about the worker's

        return {"pyarrow", "pandas", "headway.spark.stage.task", "headway.spark.sink.writers"} <= sys.modules.keys()

    assert spark.range(1).select(is_warm("id")).collect()[0][0]
