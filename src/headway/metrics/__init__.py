"""What is measured: the table of all metrics, the samples that clients return, and the exporters of samples."""

from headway.metrics.health import Health
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Sample
from headway.metrics.table import METRICS, Metric

__all__ = ["METRICS", "Health", "HistogramValue", "Metric", "Sample"]
