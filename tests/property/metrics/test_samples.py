"""Merging the samples of several processes gives what one process would have measured."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics.histogram import Histogram, HistogramValue
from headway.metrics.samples import Sample, merge, totals
from headway.metrics.table import (
    CIRCUIT_OPEN,
    HANDLER_DONE,
    HANDLER_DURATION,
    HANDLER_RUNNING,
    LEVEL_WORK,
    METRICS,
    MetricKind,
)

seconds = st.integers(0, 10**6).map(lambda micros: micros / 1000)
of_members = st.lists(st.lists(seconds, max_size=30), min_size=1, max_size=6)
names = st.sampled_from(["billing", "shipping"])
counts = st.dictionaries(names, st.integers(0, 10**6))


def histogram_of(values: Sequence[float]) -> HistogramValue:
    histogram = Histogram(HANDLER_DURATION.bounds)
    for value in values:
        histogram.observe(value)
    return histogram.value()


@given(of_members)
def test_merged_histograms_are_that_of_all_values(members: list[list[float]]) -> None:
    samples = [[Sample.of(HANDLER_DURATION, histogram_of(values), "billing", "bill")] for values in members]
    every = [value for values in members for value in values]
    [merged] = merge(samples)
    assert isinstance(merged.value, HistogramValue)
    assert merged.value.counts == histogram_of(every).counts
    assert merged.value.sum == pytest.approx(sum(every))
    assert merged.value.count == len(every)


@given(st.lists(seconds, min_size=1))
def test_each_value_is_in_the_bucket_of_the_first_bound_that_is_not_below_it(values: list[float]) -> None:
    bounds = HANDLER_DURATION.bounds
    cumulative = [sum(value <= bound for value in values) for bound in bounds]
    state = histogram_of(values)
    assert [sum(state.counts[: number + 1]) for number in range(len(bounds))] == cumulative
    assert state.mean == pytest.approx(sum(values) / len(values))


@given(seconds, st.integers(0, 1000))
def test_a_value_can_be_added_several_times_at_once(value: float, times: int) -> None:
    together = Histogram(HANDLER_DURATION.bounds)
    together.observe(value, times)
    one_by_one = histogram_of([value] * times)
    assert together.value().counts == one_by_one.counts
    assert together.value().sum == pytest.approx(one_by_one.sum)


@given(st.lists(counts, min_size=1, max_size=5))
def test_counters_are_added_up_for_each_label_and_in_any_order(members: list[dict[str, int]]) -> None:
    samples = [[Sample.of(HANDLER_DONE, done, group, "bill") for group, done in of.items()] for of in members]
    merged = {sample.labels[0]: sample.value for sample in merge(samples)}
    assert merged == {group: sum(of.get(group, 0) for of in members) for of in members for group in of}
    assert {sample.labels[0]: sample.value for sample in merge(reversed(samples))} == merged


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6))
def test_a_gauge_is_merged_as_the_table_says(values: list[int]) -> None:
    def merged(sample_of: list[Sample]) -> float | HistogramValue:
        [sample] = merge([sample] for sample in sample_of)
        return sample.value

    assert merged([Sample.of(HANDLER_RUNNING, value, "billing", "bill") for value in values]) == sum(values)
    assert merged([Sample.of(CIRCUIT_OPEN, value, "billing", "bill") for value in values]) == max(values)
    mean = merged([Sample.of(LEVEL_WORK, value, "billing", "orders", 0) for value in values])
    assert mean == pytest.approx(sum(values) / len(values))


@given(of_members)
def test_samples_survive_the_way_to_another_process(members: list[list[float]]) -> None:
    samples = [Sample.of(HANDLER_DURATION, histogram_of(values), "billing", str(values)) for values in members]
    samples.append(Sample.of(HANDLER_DONE, 3, "billing", "bill"))
    assert msgspec.json.decode(msgspec.json.encode(samples), type=list[Sample]) == samples


def test_totals_are_counters_and_histograms_of_known_metrics() -> None:
    labels = {name: ("x",) * len(metric.labels) for name, metric in METRICS.items()}
    samples = [Sample(name, labels[name], 1) for name in METRICS] + [Sample("headway_of_another_version", (), 1)]
    kept = {sample.name for sample in totals(samples)}
    assert kept == {name for name, metric in METRICS.items() if metric.kind is not MetricKind.GAUGE}
    assert {sample.name for sample in merge([samples])} == set(METRICS)
