"""The samples of clients reach OpenTelemetry, under the names of the conventions."""

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headway.metrics.conventions import OPT_IN, Conventions, conventions_in_use
from headway.metrics.histogram import HistogramValue
from headway.metrics.opentelemetry import register
from headway.metrics.samples import Measure, Sample
from headway.metrics.table import CIRCUIT_OPEN, HANDLER_DONE, HANDLER_DURATION, HANDLER_RUNNING, METRICS, PRODUCER_SENT


class Client:
    """Something that is measured, whose samples the test chooses."""

    def __init__(self, *samples: Sample) -> None:
        self.samples = list(samples)
        self.reads = 0

    def measure(self) -> Measure:
        def read() -> list[Sample]:
            self.reads += 1
            return self.samples

        return read


class Exported:
    """The metrics of some clients, as the SDK exports them."""

    def __init__(self, *clients: Client) -> None:
        self._reader = InMemoryMetricReader()
        register(*clients, meter_provider=MeterProvider([self._reader]))

    def scopes(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []

    def metrics(self) -> dict[str, Any]:
        return {metric.name: metric for scope in self.scopes() for metric in scope.metrics}

    def points(self, name: str) -> list[tuple[float, dict[str, Any]]]:
        return [(point.value, dict(point.attributes)) for point in self.metrics()[name].data.data_points]


def test_a_counter_of_the_conventions_has_their_name_and_attributes() -> None:
    exported = Exported(Client(Sample.of(PRODUCER_SENT, 7, "shop", "orders", 1)))
    assert exported.points("messaging.client.sent.messages") == [
        (
            7,
            {
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.client.id": "shop",
                "messaging.destination.name": "orders",
                "headway.level": "1",
            },
        )
    ]


def test_metrics_without_a_conventional_name_have_ours() -> None:
    exported = Exported(Client(Sample.of(HANDLER_RUNNING, 3, "billing", "bill")))
    assert exported.points("headway.handler.running") == [
        (3, {"messaging.consumer.group.name": "billing", "headway.handler": "bill"})
    ]


def test_kinds_and_units_are_those_of_the_table() -> None:
    exported = Exported(
        Client(
            Sample.of(HANDLER_DONE, 1, "billing", "bill"),
            Sample.of(HANDLER_RUNNING, 2, "billing", "bill"),
            Sample.of(CIRCUIT_OPEN, 1, "billing", "bill"),
        )
    ).metrics()
    done, running, circuit = (
        exported[name] for name in (HANDLER_DONE.otel, "headway.handler.running", "headway.circuit.open")
    )
    assert (done.data.is_monotonic, done.unit, done.description) == (True, "{record}", HANDLER_DONE.help)
    assert not running.data.is_monotonic
    assert not hasattr(circuit.data, "is_monotonic"), "a flag must not be added up by a backend"


def test_a_histogram_has_the_count_the_sum_and_cumulative_buckets() -> None:
    counts = (2, 1, *(0,) * (len(HANDLER_DURATION.bounds) - 2), 1)
    client = Client(Sample.of(HANDLER_DURATION, HistogramValue(counts, 400.5), "billing", "bill"))
    exported = Exported(client)
    name = HANDLER_DURATION.otel
    assert [value for value, _ in exported.points(f"{name}.count")] == [4]
    assert [value for value, _ in exported.points(f"{name}.sum")] == [400.5]
    buckets = {attributes["le"]: value for value, attributes in exported.points(f"{name}.bucket")}
    assert (buckets["0.001"], buckets["0.0025"], buckets["300"], buckets["+Inf"]) == (2, 3, 3, 4)


def test_samples_of_several_clients_are_added_up() -> None:
    clients = [Client(Sample.of(HANDLER_DONE, count, "billing", "bill")) for count in (1, 2)]
    assert [value for value, _ in Exported(*clients).points(HANDLER_DONE.otel)] == [3]


def test_all_instruments_of_a_collection_share_one_reading() -> None:
    client = Client(*(Sample.of(metric, 1, "billing", "bill") for metric in (HANDLER_DONE, HANDLER_RUNNING)))
    exported = Exported(client)
    assert len(exported.metrics()) == 2
    assert client.reads == 1
    client.samples = [Sample.of(HANDLER_DONE, 5, "billing", "bill")]
    assert [value for value, _ in exported.points(HANDLER_DONE.otel)] == [5]
    assert client.reads == 2


def test_a_label_that_is_not_unicode_is_exported_nevertheless() -> None:
    exported = Exported(Client(Sample.of(METRICS["headway_tenant_waiting"], 1, "billing", "a\ud800")))
    assert [attributes["headway.tenant"] for _, attributes in exported.points("headway.tenant.waiting")] == ["a?"]


@pytest.mark.parametrize(
    ("chosen", "conventions"),
    [
        ("", Conventions.V1_44),
        ("http,database", Conventions.V1_44),
        ("messaging", Conventions.V1_45),
        ("http, messaging", Conventions.V1_45),
        ("messaging,messaging/dup", Conventions.BOTH),
    ],
)
def test_the_environment_chooses_the_version_of_the_conventions(
    chosen: str, conventions: Conventions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPT_IN, chosen)
    assert conventions_in_use() is conventions


@pytest.mark.parametrize(
    ("chosen", "names", "schema"),
    [
        ("", {"messaging.system"}, "1.44.0"),
        ("messaging", {"messaging.system.name"}, "1.45.0"),
        ("messaging/dup", {"messaging.system", "messaging.system.name"}, "1.45.0"),
    ],
)
def test_attributes_and_schema_follow_the_chosen_version(
    chosen: str, names: set[str], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPT_IN, chosen)
    exported = Exported(Client(Sample.of(HANDLER_DONE, 1, "billing", "bill")))
    [(_, attributes)] = exported.points(HANDLER_DONE.otel)
    assert {name for name in attributes if name.startswith("messaging.system")} == names
    assert {scope.schema_url for scope in exported.scopes()} == {f"https://opentelemetry.io/schemas/{schema}"}
