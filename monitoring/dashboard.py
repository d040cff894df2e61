"""Make the Grafana dashboard from the table of metrics: `python monitoring/dashboard.py`.

A panel has the help and the unit of its metric. Its query follows from the metric's kind: counters become rates, and
histograms become the median and the 99th percentile.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headway.metrics import table
from headway.metrics.table import Combine, Metric, MetricKind

FILE = Path(__file__).with_name("grafana.json")

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_UNITS = {"s": "s", "By": "bytes", "1": "none"}
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8  # Grafana's grid is 24 wide
_OF_VARIABLES = ("group", "client")


class Panel(NamedTuple):
    """A panel: its title, its metric, and the labels by which values are kept apart."""

    title: str
    metric: Metric
    by: tuple[str, ...] = ()


ROWS: dict[str, list[Panel]] = {
    "What waits": [
        Panel("Seconds of work that wait", table.LEVEL_WORK, ("topic", "level")),
        Panel("Records not done", table.LEVEL_NOT_DONE, ("topic", "level")),
        Panel("Age of the oldest record", table.LEVEL_OLDEST, ("topic", "level")),
        Panel("Longest stuck record", table.PARTITION_STUCK, ("topic", "level", "partition")),
        Panel("Time in the queue", table.LEVEL_QUEUE_TIME, ("level",)),
        Panel("Records held by rules", table.RULE_HELD, ("rule",)),
    ],
    "Handlers": [
        Panel("Records done", table.HANDLER_DONE, ("handler",)),
        Panel("Failed attempts", table.HANDLER_FAILED, ("handler", "error")),
        Panel("Handler time", table.HANDLER_DURATION, ("handler",)),
        Panel("Records running", table.HANDLER_RUNNING, ("handler",)),
        Panel("Usable slots", table.HANDLER_SLOTS, ("handler",)),
        Panel("Dead letters", table.HANDLER_DEAD, ("handler",)),
        Panel("Circuit open", table.CIRCUIT_OPEN, ("handler",)),
        Panel("Handler time of tenants", table.TENANT_TIME, ("tenant",)),
        Panel("Waiting records of tenants", table.TENANT_WAITING, ("tenant",)),
    ],
    "Levels": [
        Panel("Share of the slots", table.LEVEL_SHARE, ("level",)),
        Panel("Lent slots", table.LEVEL_LENT, ("level",)),
        Panel("Borrowed slots", table.LEVEL_BORROWED, ("level",)),
    ],
    "Groups": [
        Panel("Processes by state", table.CONSUMER_STATE, ("state",)),
        Panel("Rebalances", table.CONSUMER_REBALANCES, ("group",)),
        Panel("Time of a commit", table.CONSUMER_COMMIT_TIME, ("group",)),
        Panel("Failed commits", table.CONSUMER_COMMIT_FAILURES, ("group",)),
        Panel("Size of offset maps, of 4,096 characters", table.PARTITION_MAP, ("topic", "level", "partition")),
        Panel("Paused partitions", table.PARTITION_PAUSED, ("topic", "level", "partition", "reason")),
    ],
    "Producers": [
        Panel("Records without a delivery report", table.PRODUCER_BUFFERED, ("topic", "level")),
        Panel("Delivered records", table.PRODUCER_DELIVERED, ("topic", "level")),
        Panel("Delivery time", table.PRODUCER_DELIVERY_TIME, ("level",)),
        Panel("Size of the buffer's records", table.PRODUCER_BUFFERED_BYTES, ("client",)),
        Panel("Failed records", table.PRODUCER_FAILED, ("topic", "level", "error")),
        Panel("Records for which the buffer was full", table.PRODUCER_REFUSED, ("client",)),
    ],
    "Relays": [
        Panel("Pending records", table.RELAY_PENDING, ("delay_topic",)),
        Panel("Lateness", table.RELAY_LATENESS, ("group",)),
        Panel("Overdue", table.RELAY_OVERDUE, ("group",)),
        Panel("Delivered records", table.RELAY_DELIVERED, ("group",)),
        Panel("Moved records", table.RELAY_MOVED, ("delay_topic",)),
        Panel("Takeovers", table.RELAY_TAKEOVERS, ("group",)),
    ],
    "Spark queries": [
        Panel("Offsets that wait", table.SPARK_WAITING, ("query", "level")),
        Panel("Age of the oldest offset that waits", table.SPARK_OLDEST, ("query", "level")),
        Panel("Time of a micro-batch", table.SPARK_BATCH_TIME, ("query",)),
    ],
}
"""The panels of the dashboard by row."""


def queries(panel: Panel) -> Iterator[tuple[str, str]]:
    """Yield the queries of a panel, each with its legend."""
    metric, legend = panel.metric, " ".join(f"{{{{{label}}}}}" for label in panel.by)
    filters = ", ".join(f'{label}=~"${label}"' for label in _OF_VARIABLES if label in metric.labels)
    selected = f"{{{filters}}}"
    by = ", ".join(panel.by)
    match metric.kind:
        case MetricKind.COUNTER:
            yield f"sum by ({by}) (rate({metric.name}{selected}[$__rate_interval]))", legend
        case MetricKind.HISTOGRAM:
            buckets = f"sum by (le, {by}) (rate({metric.name}_bucket{selected}[$__rate_interval]))"
            for quantile, name in ((0.5, "median"), (0.99, "p99")):
                yield f"histogram_quantile({quantile}, {buckets})", f"{legend} {name}"
        case MetricKind.GAUGE:
            function = {Combine.SUM: "sum", Combine.MAX: "max", Combine.MEAN: "avg"}[metric.combine]
            function = "sum" if metric is table.LEVEL_WORK else function
            yield f"{function} by ({by}) ({metric.name}{selected})", legend


def _unit(metric: Metric) -> str:
    if metric.kind is MetricKind.COUNTER:
        return "none" if metric.unit == "s" else "cps"  # seconds each second have no unit
    return _UNITS.get(metric.unit, "short")


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.metric.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": _unit(panel.metric), "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(queries(panel))
        ],
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        y += 1
        for place, panel in enumerate(panels):
            number += 1
            row, column = divmod(place, _COLUMNS)
            yield _panel(panel, number, column * _WIDTH, y + row * _HEIGHT)
        y += -(-len(panels) // _COLUMNS) * _HEIGHT


def _variable(label: str, metric: Metric) -> dict[str, Any]:
    query = f"label_values({metric.name}, {label})"
    every = {"includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}}
    return {"name": label, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2, **every}


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it."""
    source = {"name": "source", "type": "datasource", "query": "prometheus"}
    variables = [source, _variable("group", table.CONSUMER_STATE), _variable("client", table.PRODUCER_SENT)]
    return {
        "uid": "headway",
        "title": "Headway",
        "tags": ["headway", "kafka"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_panels()),
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
