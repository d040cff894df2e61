"""The metrics of a streaming query, against a run in which the right values are known."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import SparkSession

from headway.metrics.histogram import HistogramValue
from headway.metrics.prometheus import register
from headway.spark import QueryMetrics, parallel_map
from tests.spark.test_lifespans import await_that

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = pytest.mark.spark


def values(metrics: QueryMetrics, name: str, query: str) -> dict[tuple[str, ...], float]:
    """The values of a query's metric by its other labels. Of a histogram the number of values."""
    return {
        each.labels[1:]: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in metrics.measure()()
        if each.name == f"headway_{name}" and each.labels[0] == query
    }


def test_the_metrics_of_a_query_are_what_happened(spark: SparkSession, orders: "LevelTopics", tmp_path: Path) -> None:
    def fail_some(row: Any) -> str:
        if int(row.value) == 1:
            raise ValueError(row.value)
        return str(row.value)

    orders.send(0, range(10))
    orders.send(2, range(3, 5))
    name, metrics, registry = f"query-{orders.topic}", QueryMetrics(), CollectorRegistry()
    register(metrics, registry=registry)
    spark.streams.addListener(metrics)
    try:
        stream = spark.readStream.format("headway").options(**orders.options, startingOffsets="earliest").load()
        rows = parallel_map(stream, fail_some, "string", key=None)
        writer = rows.writeStream.format("noop").queryName(name).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        await_that(lambda: values(metrics, "spark_rows_total", name) == {(): 12})
        await_that(lambda: values(metrics, "spark_query_running", name) == {(): 0})
    finally:
        spark.streams.removeListener(metrics)
    assert values(metrics, "spark_read_offsets_total", name) == {("0",): 10, ("1",): 0, ("2",): 2}
    assert values(metrics, "spark_batch_seconds", name)[()] >= 1
    assert values(metrics, "spark_query_failures_total", name) == {(): 0}
    outcomes = values(metrics, "spark_outcomes_total", name)
    assert outcomes["parallel_map of fail_some", "ok"] == 11
    assert outcomes["parallel_map of fail_some", "failed"] == 1
    assert f'headway_spark_rows_total{{query="{name}"}} 12.0' in generate_latest(registry).decode()
