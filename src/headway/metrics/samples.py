"""Samples: the values of metrics at one moment, and how the samples of several processes become those of one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol, Self

from headway.metrics.histogram import HistogramValue
from headway.metrics.table import METRICS, Combine, Metric, MetricKind


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric for certain labels. `msgspec` can encode and decode a list of samples.

    Attributes:
        name: The name of the metric in `METRICS`.
        labels: The values of the metric's labels, in the order of `Metric.labels`.
        value: A number, or for a histogram a `HistogramValue`.
    """

    name: str
    labels: tuple[str, ...]
    value: float | HistogramValue

    @classmethod
    def of(cls, metric: Metric, value: float | HistogramValue, *labels: object) -> Self:
        """Make a sample of a metric, with a value for each of its labels.

        Raises `ValueError` if the metric has another number of labels.
        """
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, but these values were given: {labels}.")
        return cls(metric.name, tuple(map(str, labels)), value)

    @property
    def metric(self) -> Metric:
        """The metric in the table. Raises `KeyError` if the table has no metric of this name."""
        return METRICS[self.name]


Measure = Callable[[], list[Sample]]
"""Returns the current samples of a client. Any thread can call it, even after the client was closed."""


class Measurable(Protocol):
    """A client that can be measured, such as a `ParallelConsumer` or a `Producer`."""

    def measure(self) -> Measure:
        """Measure this client from now on, and return a function that returns its samples."""
        ...


def merge(of_members: Iterable[Iterable[Sample]]) -> list[Sample]:
    """Return the samples of several members as those of one, such as for all processes of a pod.

    Counters and histograms are added up. How a gauge is merged is a property of the metric. Samples with the same name
    and labels must not occur twice within one member. Samples of unknown metrics are left out. All members must be
    merged in one call, because a mean of means would be wrong.
    """
    values: defaultdict[tuple[str, tuple[str, ...]], list[float | HistogramValue]] = defaultdict(list)
    for sample in (sample for of_member in of_members for sample in of_member):
        if sample.name in METRICS:
            values[sample.name, sample.labels].append(sample.value)
    return [
        Sample(name, labels, _merged(METRICS[name].combine, of_series)) for (name, labels), of_series in values.items()
    ]


def _merged(combine: Combine, values: Sequence[float | HistogramValue]) -> float | HistogramValue:
    histograms = [value for value in values if isinstance(value, HistogramValue)]
    if histograms:
        return sum(histograms[1:], histograms[0])
    numbers = [value for value in values if not isinstance(value, HistogramValue)]
    match combine:
        case Combine.SUM:
            return sum(numbers)
        case Combine.MAX:
            return max(numbers)
        case Combine.MEAN:
            return fmean(numbers)


def totals(samples: Iterable[Sample]) -> list[Sample]:
    """Return only the counters and histograms, which must still be counted after their process has ended."""
    return [each for each in samples if each.name in METRICS and each.metric.kind is not MetricKind.GAUGE]


def with_label(samples: Iterable[Sample], label: str, value: str) -> list[Sample]:
    """Return the samples with this value of a label, where their metrics have the label."""
    changed = []
    for sample in samples:
        names = sample.metric.labels
        if label in names:
            at = names.index(label)
            sample = replace(sample, labels=(*sample.labels[:at], value, *sample.labels[at + 1 :]))  # noqa: PLW2901
        changed.append(sample)
    return changed
