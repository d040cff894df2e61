"""The dashboard, alerts and scaling rules of `monitoring/` name only metrics and labels that exist, in valid PromQL."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from headway.metrics.table import METRICS, Metric, MetricKind

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "monitoring"
GRAFANA = FOLDER / "grafana.json"

_OF_KUBERNETES = {"pod", "namespace"}
_KEYWORDS = {"by", "or", "and", "unless"}
_AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
_RATES = {"rate", "increase"}
_FUNCTIONS = {*_AGGREGATIONS, *_RATES, "histogram_quantile", "label_values"}
_TOKEN = re.compile(
    r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>[0-9.]+) | (?P<string>"[^"]*")
    | (?P<range>\[(?:[0-9]+[smhd]|\$__rate_interval)\]) | (?P<template><<\.LabelMatchers>>)
    | (?P<operator>=~|!=|[-+*/=<>(){},]) | (?P<space>\s+)""",
    re.VERBOSE,
)
_SUFFIXES = ("_bucket", "_sum", "_count")


def tokens(query: str) -> list[tuple[str, str]]:
    """The tokens of a query, without spaces. Fails for text that is no token."""
    found, place = list[tuple[str, str]](), 0
    while place < len(query):
        match = _TOKEN.match(query, place)
        assert match, f"{query[place:]!r} is not PromQL"
        place = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def metric_of(name: str) -> Metric | None:
    for suffix in _SUFFIXES:
        base = METRICS.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base and base.kind is MetricKind.HISTOGRAM:
            return base
    found = METRICS.get(name)
    return found if found and found.kind is not MetricKind.HISTOGRAM else None


class Query:
    """A parsed query: the metrics, each with the functions around it, and the labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.metrics: list[tuple[Metric, list[str]]] = []
        self.labels: set[str] = set()
        open_: list[str] = []  # the open brackets, each with the function before it
        before, is_list = "", False
        for kind, word in tokens(text):
            if word in "({":
                is_list = before == "by"
                open_.append(word if word == "{" else "by" if is_list else before)
            elif word in ")}":
                assert open_, text
                assert (open_.pop() == "{") == (word == "}"), text
            elif kind == "name":
                self._name(word, open_)
            before = word
        assert not open_, text

    def _name(self, name: str, open_: list[str]) -> None:
        if open_ and open_[-1] in ("{", "by"):
            self.labels.add(name)
        elif metric := metric_of(name):
            self.metrics.append((metric, list(open_)))
        elif open_ and open_[-1] == "label_values":
            self.labels.add(name)
        else:
            assert name in _KEYWORDS | _FUNCTIONS, f"{name} in {self.text}"


def queries() -> Iterator[tuple[str, str]]:
    """Every query of the folder, with where it is."""
    grafana: dict[str, Any] = json.loads(GRAFANA.read_text())
    for panel in grafana["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
    yield from ((each["name"], each["query"]) for each in grafana["templating"]["list"] if each["type"] == "query")
    for group in documents("prometheus-rules.yaml")[0]["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    yield from (("keda", each["metadata"]["query"]) for each in documents("keda.yaml")[0]["spec"]["triggers"])
    adapter = yaml.safe_load(documents("hpa.yaml")[0]["data"]["config.yaml"])
    for rule in adapter["externalRules"]:
        yield "the adapter", rule["metricsQuery"]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


QUERIES = list(queries())


@pytest.mark.parametrize(("where", "text"), QUERIES, ids=[f"{where}: {text[:40]}" for where, text in QUERIES])
def test_a_query_names_metrics_and_labels_that_exist(where: str, text: str) -> None:
    query = Query(text)
    assert query.metrics, where
    known = {label for metric, _ in query.metrics for label in metric.labels} | _OF_KUBERNETES | {"le"}
    assert query.labels <= known
    for metric, around in query.metrics:
        is_rated = bool(_RATES.intersection(around)) or "label_values" in around
        assert is_rated == (metric.kind is not MetricKind.GAUGE or "label_values" in around), text
        assert ("histogram_quantile" in around) == (metric.kind is MetricKind.HISTOGRAM), text


def test_a_query_that_is_wrong_is_found() -> None:
    for wrong in ("sum(headway_nothing)", "sum(headway_circuit_open", "rate(headway_circuit_open)}", "sum(a ? b)"):
        with pytest.raises(AssertionError):
            Query(wrong)


def test_every_name_in_the_folder_is_a_metric() -> None:
    text = "".join(path.read_text() for path in FOLDER.glob("*.[jy]*"))
    names = set(re.findall(r"\bheadway_[a-z_]+", text))
    assert names
    assert {name for name in names if metric_of(name) is None} == set()


def test_the_dashboard_is_the_one_that_the_script_makes() -> None:
    spec = importlib.util.spec_from_file_location("monitoring_dashboard", FOLDER / "dashboard.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert GRAFANA.read_text() == script.text(), "run python monitoring/dashboard.py"


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    panels = json.loads(GRAFANA.read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


def test_there_are_six_alerts_and_each_says_what_to_do() -> None:
    rules = [rule for group in documents("prometheus-rules.yaml")[0]["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == 6
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        for text in (rule["annotations"]["summary"], rule["annotations"]["action"]):
            assert text.endswith(".")
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        kept = [set(re.findall(r"\w+", each)) for each in re.findall(r"by \(([^)]*)\)", rule["expr"])]
        assert all(used <= each for each in kept), rule["alert"]


def test_the_autoscalers_scale_by_seconds_of_work() -> None:
    [scaled] = documents("keda.yaml")
    config, autoscaler = documents("hpa.yaml")
    assert "headway_level_work_seconds" in scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert autoscaler["spec"]["metrics"][0]["external"]["metric"]["name"] == "headway_level_work_seconds"
    assert config["kind"] == "ConfigMap"
    assert scaled["spec"]["minReplicaCount"] == autoscaler["spec"]["minReplicas"] == 1


def test_the_page_lists_the_alerts_and_all_meters_of_the_java_consumer() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for group in documents("prometheus-rules.yaml")[0]["groups"]:
        assert all(f"| `{rule['alert']}` |" in page for rule in group["rules"])
    section = page.partition("## Metrics of the Java parallel consumer")[2].partition("## ")[0]
    assert len(set(re.findall(r"`(pc\.[a-z.]+)`", section))) == 24
