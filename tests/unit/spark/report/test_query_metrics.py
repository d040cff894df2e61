"""The figures of streaming queries add up over their micro-batches and starts, and ended queries are bounded."""

import json
from types import SimpleNamespace
from typing import Any

from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Sample
from headway.spark.report.query_metrics import QueryMetrics


def started(id_: str, name: str | None) -> Any:
    return SimpleNamespace(id=id_, name=name)


def ended(id_: str, exception: str | None) -> Any:
    return SimpleNamespace(id=id_, exception=exception)


def progress(id_: str, name: str | None, **fields: Any) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(id=id_, name=name, json=json.dumps(fields)))


def source(start: int, end: int, latest: int, wait: float | None) -> dict[str, Any]:
    """The progress of a source with one partition at level 0, as Spark reports it."""

    def offset(stop: int) -> dict[str, Any]:
        return {"offsets": {"orders": {"0": {"0": stop}}}, "topicIds": {}, "tasks": 1}

    waits = {} if wait is None else {"oldestWaitSeconds": {"0": wait}}
    return {
        "startOffset": json.dumps(offset(start)),
        "endOffset": json.dumps(offset(end)),
        "latestOffset": json.dumps(offset(latest) | waits),
    }


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    return {
        each.labels: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in samples
        if each.name == f"headway_{name}"
    }


def test_micro_batches_add_up_and_gauges_are_the_last() -> None:
    metrics = QueryMetrics()
    measure = metrics.measure()
    metrics.onQueryStarted(started("id", "charging"))
    stage = {"headway parallel_map of charge #3": {"ok": 4, "failed": 1}}
    took = {"triggerExecution": 500}
    for begin, wait in ((0, 40.0), (5, 2.5)):
        sources = [source(begin, begin + 5, 20, wait)]
        fields = {"numInputRows": 5, "durationMs": took, "sources": sources, "observedMetrics": stage}
        metrics.onQueryProgress(progress("id", "charging", **fields))
    metrics.onQueryProgress(progress("id", "charging", numInputRows=0, sources=[source(10, 10, 20, 7.5)]))
    samples = measure()
    assert values(samples, "spark_query_running") == {("charging",): 1}
    assert values(samples, "spark_rows_total") == {("charging",): 10}
    assert values(samples, "spark_batch_seconds") == {("charging",): 2}
    assert values(samples, "spark_read_offsets_total") == {("charging", "0"): 10}
    assert values(samples, "spark_waiting_offsets") == {("charging", "0"): 10}
    assert values(samples, "spark_oldest_seconds") == {("charging", "0"): 7.5}
    of_stage = ("charging", "parallel_map of charge")
    assert values(samples, "spark_outcomes_total") == {(*of_stage, "ok"): 8, (*of_stage, "failed"): 2}


def test_a_query_that_ends_keeps_its_totals_and_counts_its_failures() -> None:
    metrics = QueryMetrics()
    for exception in (None, "SparkException"):
        metrics.onQueryStarted(started("id", None))
        metrics.onQueryProgress(progress("id", None, numInputRows=5, sources=[source(0, 5, 9, 1.0)]))
        metrics.onQueryTerminated(ended("id", exception))
    samples = metrics.measure()()
    assert values(samples, "spark_query_running") == {("id",): 0}
    assert values(samples, "spark_query_failures_total") == {("id",): 1}
    assert values(samples, "spark_rows_total") == {("id",): 10}
    assert values(samples, "spark_waiting_offsets") == {}


def test_a_source_of_another_format_has_no_levels() -> None:
    metrics = QueryMetrics()
    metrics.onQueryProgress(progress("id", "rates", numInputRows=1, sources=[{"endOffset": "17"}]))
    assert values(metrics.measure()(), "spark_rows_total") == {("rates",): 1}
    assert values(metrics.measure()(), "spark_read_offsets_total") == {}


def test_only_the_latest_ended_queries_are_kept() -> None:
    metrics = QueryMetrics()
    metrics.onQueryStarted(started("first", "runs on"))
    for number in range(300):
        metrics.onQueryStarted(started(str(number), None))
        metrics.onQueryTerminated(ended(str(number), None))
    names = {labels[0] for labels in values(metrics.measure()(), "spark_query_running")}
    assert "runs on" in names
    assert "299" in names
    assert len(names) <= 102
