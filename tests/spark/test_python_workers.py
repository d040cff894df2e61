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
