"""The table of metrics keeps the rules that Prometheus and OpenTelemetry have for names."""

import re

import pytest

from headway.metrics.samples import Sample
from headway.metrics.table import HANDLER_RUNNING, METRICS, Combine, Metric, MetricKind

every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


@every_metric
def test_a_name_has_the_form_that_its_kind_and_unit_demand(metric: Metric) -> None:
    assert re.fullmatch("headway(_[a-z]+)+", metric.name)
    assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
    assert ("_seconds" in metric.name) == (metric.unit == "s")
    assert ("_bytes" in metric.name) == (metric.unit == "By")


@every_metric
def test_labels_are_legal_and_few(metric: Metric) -> None:
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", label) for label in metric.labels)
    assert len(set(metric.labels)) == len(metric.labels) <= 5
    assert "le" not in metric.labels


@every_metric
def test_a_help_is_a_sentence(metric: Metric) -> None:
    assert metric.help[0].isupper() or metric.help[0].isdigit() or metric.help.startswith("librdkafka")
    assert metric.help.endswith(".")


@every_metric
def test_only_histograms_have_bounds_and_they_ascend(metric: Metric) -> None:
    assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM)
    assert list(metric.bounds) == sorted(set(metric.bounds))
    assert metric.kind is MetricKind.GAUGE or metric.combine is Combine.SUM


def test_our_own_names_for_opentelemetry_are_unique_and_dotted() -> None:
    own = [metric.otel for metric in METRICS.values() if metric.otel.startswith("headway.")]
    assert len(set(own)) == len(own)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)+(_[a-z]+)*", metric.otel) for metric in METRICS.values())


def test_a_sample_needs_a_value_for_each_label() -> None:
    assert Sample.of(HANDLER_RUNNING, 3, "billing", "bill").labels == ("billing", "bill")
    with pytest.raises(ValueError, match="group"):
        Sample.of(HANDLER_RUNNING, 3, "billing")
