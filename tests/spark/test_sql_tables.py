"""`format("headway")` in SQL: views have its options, and tables of the catalog do not."""

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ADVICE = "use CREATE TEMPORARY VIEW … USING headway OPTIONS"


def test_sql_reads_and_writes_by_views_and_a_table_of_the_catalog_is_a_sentence_that_says_so(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    servers = f"'kafka.bootstrap.servers' '{orders.servers}'"
    writing, reading = (
        f"OPTIONS (topic '{orders.topic}-0', {servers})",
        f"OPTIONS (subscribe '{orders.topic}-0', {servers})",
    )
    spark.sql(f"CREATE TEMPORARY VIEW to_orders (key STRING, value STRING) USING headway {writing}")
    spark.sql("INSERT INTO to_orders VALUES ('a', 'book'), ('b', 'pen')")
    spark.sql(f"CREATE TEMPORARY VIEW of_orders USING headway {reading}")
    rows = spark.sql("SELECT cast(value AS STRING) AS value FROM of_orders ORDER BY value").collect()
    assert [row.value for row in rows] == ["book", "pen"]

    with pytest.raises(AnalysisException, match=ADVICE):
        spark.sql(f"CREATE TABLE orders_of_catalog USING headway {reading}")
    spark.sql(f"CREATE TABLE orders_to_catalog (value STRING) USING headway {writing}")
    try:
        for statement in ("INSERT INTO orders_to_catalog VALUES ('a')", "SELECT * FROM orders_to_catalog"):
            with pytest.raises(AnalysisException, match=ADVICE):
                spark.sql(statement).collect()
    finally:
        for name in ("TABLE orders_to_catalog", "VIEW to_orders", "VIEW of_orders"):
            spark.sql(f"DROP {name}")
