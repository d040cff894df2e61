"""Exports the samples of clients to Prometheus. Needs the extra `prometheus`."""

from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from operator import attrgetter

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Measurable, Measure, Sample, merge
from headway.metrics.table import METRICS, Metric, MetricKind

__all__ = ["register"]


def register(*clients: Measurable, registry: CollectorRegistry = REGISTRY) -> Collector:
    """Measure these clients from now on, and export their samples to Prometheus.

    Call this once with all clients of the process, because samples of two clients with the same labels are added up. A
    client can be closed before or after. Pass the result to `registry.unregister` to end the export.

    >>> register(consumer, producer)  # doctest: +SKIP
    """
    collector = SampleCollector([client.measure() for client in clients])
    registry.register(collector)
    return collector


class SampleCollector(Collector):
    """Makes Prometheus' metric families of the samples that these functions return."""

    def __init__(self, measures: Iterable[Measure]) -> None:
        self._measures = list(measures)

    def describe(self) -> Iterable[MetricFamily]:
        """Return all families, without samples, so that a registry knows the names."""
        return [_family(metric) for metric in METRICS.values()]

    def collect(self) -> Iterator[MetricFamily]:
        """Return the families that have samples now."""
        order = {name: number for number, name in enumerate(METRICS)}
        merged = sorted(merge(measure() for measure in self._measures), key=lambda sample: order[sample.name])
        for name, samples in groupby(merged, attrgetter("name")):
            family = _family(METRICS[name])
            for sample in samples:
                _add(family, sample)
            yield family


def exposition(samples: Iterable[Sample], accept: str = "") -> tuple[bytes, str]:
    """Return samples in Prometheus' text format, or in that of OpenMetrics if `accept` asks for it, and its type."""
    registry = CollectorRegistry()
    registry.register(SampleCollector([lambda: list(samples)]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(metric: Metric) -> MetricFamily:
    match metric.kind:
        case MetricKind.COUNTER:
            return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: MetricFamily, sample: Sample) -> None:
    value, labels = sample.value, [_valid(label) for label in sample.labels]
    if isinstance(family, HistogramMetricFamily):
        if isinstance(value, HistogramValue):
            bounds = [*map(floatToGoString, sample.metric.bounds), "+Inf"]
            family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    elif isinstance(family, (CounterMetricFamily, GaugeMetricFamily)) and not isinstance(value, HistogramValue):
        family.add_metric(labels, value)


def _valid(label: str) -> str:
    """Replace what UTF-8 cannot encode, because names of tenants come from records."""
    return label.encode("utf-8", "replace").decode()
