"""The page about metrics has exactly the metrics of the table, and names no other."""

import re
from pathlib import Path

from headway.metrics.table import METRICS, Metric

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "metrics.md"


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | `{metric.otel}` |"


def test_the_page_has_a_row_for_each_metric_in_the_order_of_the_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `headway_")]
    assert rows == [row(metric) for metric in METRICS.values()], "replace the rows by these"


def test_pages_name_only_metrics_that_exist() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    suffixes = ("_bucket", "_sum", "_count")
    names = {*METRICS, *(f"{name}{suffix}" for name in METRICS for suffix in suffixes)}
    found = {name for page in pages for name in re.findall(r"\bheadway_[a-z]+_[a-z_]+[a-z]\b", page.read_text())}
    assert {name for name in found - names if name.partition("_")[2].partition("_")[0] in PARTS} == set()


PARTS = {name.split("_")[1] for name in METRICS} - {"worker"}
