"""Exports the samples of clients to OpenTelemetry. Needs the extra `otel`, and the SDK of the program."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from headway.metrics.conventions import ATTRIBUTES_OF_LABELS, AttributeValue, Conventions, conventions_in_use
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Measurable, Measure, Sample, merge
from headway.metrics.table import METRICS, Combine, Metric, MetricKind

__all__ = ["register"]

INSTRUMENTATION: Final = "headway"
_CONVENTIONAL: Final = "messaging."
# The conventions require the name of the operation for each of their metrics.
_OPERATIONS: Final = {"messaging.client.consumed.messages": "process", "messaging.client.sent.messages": "send"}

_Callback = Callable[[CallbackOptions], Iterable[Observation]]
_OfSample = Callable[[Sample], Iterable[tuple[float, dict[str, AttributeValue]]]]


def register(*clients: Measurable, meter_provider: MeterProvider | None = None) -> None:
    """Measure these clients from now on, and export their samples as observable instruments.

    Call this once with all clients of the process, because samples of two clients with the same labels are added up. A
    client can be closed before or after. Without a `meter_provider`, the global one is used. The names of attributes
    are those that the environment variable `OTEL_SEMCONV_STABILITY_OPT_IN` chooses now.

    >>> register(consumer, producer)  # doctest: +SKIP
    """
    conventions = conventions_in_use()
    meter = get_meter(INSTRUMENTATION, meter_provider=meter_provider, schema_url=conventions.schema_url)
    instruments = _Instruments(meter, _Snapshots([client.measure() for client in clients]), conventions)
    for metric in METRICS.values():
        instruments.make(metric)


class _Snapshots:
    """The samples of all clients. All instruments of one collection get the same samples, which are read once.

    The API calls back for each instrument, without telling where one collection ends. So the samples are read again
    when an instrument asks for the second time.
    """

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._measures = measures
        self._lock = threading.Lock()
        self._served = set[str]()
        self._samples: dict[str, list[Sample]] | None = None

    def of(self, metric: Metric, instrument: str) -> list[Sample]:
        """Return the samples of a metric, for this instrument."""
        with self._lock:
            if self._samples is None or instrument in self._served:
                self._served.clear()
                self._samples = {name: [] for name in METRICS}
                for sample in merge(measure() for measure in self._measures):
                    self._samples[sample.name].append(sample)
            self._served.add(instrument)
            return self._samples[metric.name]


class _Instruments:
    """Makes the instruments of each metric.

    OpenTelemetry has no observable histogram, and recording each value would cost too much for each record. So a
    histogram has three counters: of its values, of their sum, and of the values up to each bound.
    """

    def __init__(self, meter: Meter, snapshots: _Snapshots, conventions: Conventions) -> None:
        self._meter = meter
        self._snapshots = snapshots
        self._conventions = conventions

    def make(self, metric: Metric) -> None:
        """Make the instruments of a metric."""
        if metric.kind is MetricKind.COUNTER:
            self._counter(metric, metric.otel, metric.unit, self._number)
        elif metric.kind is MetricKind.HISTOGRAM:
            self._counter(metric, f"{metric.otel}.count", "1", self._count)
            self._counter(metric, f"{metric.otel}.sum", metric.unit, self._sum)
            self._counter(metric, f"{metric.otel}.bucket", "1", self._buckets)
        else:
            callback = self._callback(metric, metric.otel, self._number)
            # Only numbers that make sense as a sum may be added up by the backend.
            make = (
                self._meter.create_observable_up_down_counter
                if metric.combine is Combine.SUM
                else self._meter.create_observable_gauge
            )
            make(metric.otel, [callback], metric.unit, metric.help)

    def _counter(self, metric: Metric, name: str, unit: str, of_sample: _OfSample) -> None:
        self._meter.create_observable_counter(name, [self._callback(metric, name, of_sample)], unit, metric.help)

    def _callback(self, metric: Metric, name: str, of_sample: _OfSample) -> _Callback:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for sample in self._snapshots.of(metric, name):
                for value, attributes in of_sample(sample):
                    yield Observation(value, attributes)

        return observe

    def _attributes(self, sample: Sample) -> dict[str, AttributeValue]:
        names = (ATTRIBUTES_OF_LABELS.get(label, f"headway.{label}") for label in sample.metric.labels)
        attributes: dict[str, AttributeValue] = dict(zip(names, map(_valid, sample.labels), strict=True))
        if sample.metric.otel.startswith(_CONVENTIONAL):
            attributes["messaging.system.name"] = "kafka"
            attributes["messaging.operation.name"] = _OPERATIONS[sample.metric.otel]
        return self._conventions.named(attributes)

    def _number(self, sample: Sample) -> Iterator[tuple[float, dict[str, AttributeValue]]]:
        if not isinstance(sample.value, HistogramValue):
            yield sample.value, self._attributes(sample)

    def _count(self, sample: Sample) -> Iterator[tuple[float, dict[str, AttributeValue]]]:
        if isinstance(sample.value, HistogramValue):
            yield sample.value.count, self._attributes(sample)

    def _sum(self, sample: Sample) -> Iterator[tuple[float, dict[str, AttributeValue]]]:
        if isinstance(sample.value, HistogramValue):
            yield sample.value.sum, self._attributes(sample)

    def _buckets(self, sample: Sample) -> Iterator[tuple[float, dict[str, AttributeValue]]]:
        if isinstance(sample.value, HistogramValue):
            attributes = self._attributes(sample)
            bounds = [*(f"{bound:g}" for bound in sample.metric.bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(sample.value.counts), strict=True):
                yield count, {**attributes, "le": bound}


def _valid(label: str) -> str:
    """Replace what UTF-8 cannot encode, because names of tenants come from records."""
    return label.encode("utf-8", "replace").decode()
