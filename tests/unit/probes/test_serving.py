"""The server of probes answers what it should, whatever its clients do."""

import http.client
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.errors import ConfigError
from headway.metrics.health import Health
from headway.metrics.histogram import Histogram
from headway.metrics.samples import Sample
from headway.metrics.table import HANDLER_DONE, HANDLER_DURATION, TENANT_WAITING
from headway.probes import Probes


class Client:
    """What is probed: its health and samples are what a test sets."""

    def __init__(self) -> None:
        self.health = Health()
        self.samples: list[Sample] = []
        self.measured = 0

    def check(self) -> Health:
        return self.health

    def measure(self) -> list[Sample]:
        self.measured += 1
        return self.samples


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def probes(client: Client) -> Iterator[Probes]:
    with Probes(client.check, client.measure, "127.0.0.1:0") as probes:
        yield probes


def connect(probes: Probes) -> socket.socket:
    host, _, port = probes.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def ask(probes: Probes, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(probes.address, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    finally:
        connection.close()


def test_each_reason_is_a_line_and_what_is_not_live_is_not_ready(probes: Probes, client: Client) -> None:
    assert ask(probes, "/livez")[:2] == ask(probes, "/readyz?verbose")[:2] == (200, "ok\n")
    client.health = Health(not_ready=("It has no partitions.", "A commit failed."))
    assert ask(probes, "/livez")[0] == 200
    assert ask(probes, "/readyz")[:2] == (503, "It has no partitions.\nA commit failed.\n")
    client.health = Health(not_live=("It stands still.",))
    assert ask(probes, "/livez")[:2] == ask(probes, "/readyz")[:2] == (503, "It stands still.\n")


def test_metrics_can_be_read_by_prometheus(probes: Probes, client: Client) -> None:
    durations = Histogram(HANDLER_DURATION.bounds)
    durations.observe(0.02, 3)
    durations.observe(1000)
    hostile = 'a"\\\n\ud800'
    client.samples = [
        Sample.of(HANDLER_DONE, 4, "billing", "bill"),
        Sample.of(HANDLER_DURATION, durations.value(), "billing", "bill"),
        Sample.of(TENANT_WAITING, 1, "billing", hostile),
    ]
    status, text, content_type = ask(probes, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    [done] = families["headway_handler_done"].samples
    assert (done.name, done.value, done.labels) == (HANDLER_DONE.name, 4, {"group": "billing", "handler": "bill"})
    buckets = {each.labels.get("le"): each.value for each in families["headway_handler_duration_seconds"].samples}
    assert (buckets["0.01"], buckets["0.025"], buckets["300.0"], buckets["+Inf"]) == (0, 3, 3, 4)
    [waiting] = families["headway_tenant_waiting"].samples
    assert waiting.labels["tenant"] == 'a"\\\n?'


def test_metrics_are_in_the_format_of_openmetrics_if_a_client_asks_for_it(probes: Probes, client: Client) -> None:
    client.samples = [Sample.of(HANDLER_DONE, 4, "billing", "bill")]
    _, text, content_type = ask(probes, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_a_client_that_asks_all_the_time_does_not_measure_all_the_time(probes: Probes, client: Client) -> None:
    before = time.monotonic()
    for _ in range(20):
        ask(probes, "/metrics")
    assert client.measured <= 1 + (time.monotonic() - before) / 0.5


def test_metrics_without_the_extra_say_what_to_install(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headway.metrics.prometheus", None)
    status, text, _ = ask(probes, "/metrics")
    assert status == 501
    assert "pip install" in text
    assert ask(probes, "/livez")[0] == 200


def test_what_is_not_served_is_refused(probes: Probes) -> None:
    assert ask(probes, "/")[:2] == (404, "There are /livez, /metrics, /readyz.\n")
    assert ask(probes, "/livez/../../etc/passwd")[0] == 404
    assert ask(probes, "/livez", "POST")[0] == 501
    assert ask(probes, "/livez", "HEAD")[:2] == (200, "")


def test_an_error_of_the_check_is_answered_and_logged(
    probes: Probes, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def measure() -> list[Sample]:
        raise LookupError("secret")

    with Probes(client.check, measure, "127.0.0.1:0") as broken, caplog.at_level(logging.ERROR):
        assert ask(broken, "/metrics")[:2] == (500, "The answer could not be made, because of LookupError.\n")
    assert "could not be made" in caplog.text


def test_clients_that_send_nothing_keep_no_probe_out(probes: Probes) -> None:
    """A hundred connections that say nothing, then drip, and some that send what is not HTTP."""
    idle = [connect(probes) for _ in range(100)]
    try:
        for each in idle[-10:]:
            each.sendall(b"GET /li")
        for garbage in (
            b"\x16\x03\x01\x00\xff" * 50,
            b"GET " + b"x" * 100_000,
            b"\r\n\r\n",
            b"GET /livez HTTP/9.9\r\n\r\n",
        ):
            with connect(probes) as hostile:
                hostile.sendall(garbage)
        before = time.monotonic()
        assert ask(probes, "/livez")[:2] == (200, "ok\n")
        assert time.monotonic() - before < 5
        assert sum(thread.name.startswith("Thread-") for thread in threading.enumerate()) < 60
    finally:
        for each in idle:
            each.close()


def test_closing_takes_a_moment_although_clients_are_connected(client: Client) -> None:
    with Probes(client.check, client.measure, "127.0.0.1:0") as probes, connect(probes):
        before = time.monotonic()
        probes.close()
        assert time.monotonic() - before < 2
        with pytest.raises(OSError, match="refused"):
            connect(probes)


@pytest.mark.parametrize(
    "address", ["", "8080", ":8080", "localhost:", "::1:80", "localhost:99999", "a:b", "h:-1", None]
)
def test_an_address_that_is_not_valid_is_refused(client: Client, address: str) -> None:
    with pytest.raises(ConfigError, match=r"The address of the probes is .* Give HOST:PORT"):
        Probes(client.check, client.measure, address)


def test_an_address_that_is_in_use_is_named(probes: Probes, client: Client) -> None:
    with pytest.raises(ConfigError, match=f"cannot be served at {probes.address}.*in use"):
        Probes(client.check, client.measure, probes.address)


def test_probes_can_be_served_over_ipv6(client: Client) -> None:
    with socket.socket(socket.AF_INET6) as trial:
        try:
            trial.bind(("::1", 0))
        except OSError:
            pytest.skip("This machine has no IPv6.")
    with Probes(client.check, client.measure, "[::1]:0") as probes:
        assert ask(probes, "/livez")[0] == 200
