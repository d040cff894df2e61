"""What each metric of a relay means, shown by runs in which the right values are known, and the relay's health."""

import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from headway import Relay
from headway.broker import LocalBroker
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Sample
from headway.metrics.table import METRICS
from headway.probes import Probes, serve_probes
from tests.broker.delay_cluster import QUICK, DelayCluster, wait_until


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """The values of a relay's metric by its labels, without the group. Of a histogram the number of values."""
    return {
        each.labels[1:]: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in samples
        if each.name == f"headway_{name}"
    }


@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_the_metrics_of_a_relay_are_what_happened(cluster: DelayCluster, mode: str) -> None:
    soon, long = cluster.names.delay_topic(0), cluster.names.delay_topic(4000)
    with cluster.scheduler() as scheduler:
        for number in range(20):
            scheduler.send_later(b"due", b"%d" % number, cluster.target, -5)
        scheduler.send_later("k", b"x", f"{cluster.target}-missing", 0)
        moves = [scheduler.send_later(b"moved", b"x", cluster.target, 4.6) for _ in range(3)]
        far = [scheduler.send_later(b"far", b"x", cluster.target, 600) for _ in range(5)]
        for each in (*moves, *far):
            each.wait(30)
        with cluster.relay(mode=mode) as relay:
            measure = relay.measure()
            assert relay.measure() == measure
            wait_until(lambda: values(measure(), "relay_delivered_total")[()] >= 20)
            wait_until(lambda: values(measure(), "relay_partitions").get((long,)) == 2)
            wait_until(lambda: values(measure(), "relay_pending")[long,] >= 5)
            assert values(measure(), "relay_held_bytes")[()] > 0
            for handle in far[:2]:
                scheduler.cancel(handle).settled(30)
            scheduler.send_later("k", b"first", cluster.target, 600, id="own").wait(30)
            scheduler.send_later("k", b"second", cluster.target, 600, id="own").wait(30)
            cluster.wait_for(23)
            wait_until(lambda: values(measure(), "relay_overdue_seconds") == {(): 0})
            wait_until(lambda: values(measure(), "relay_failed_total") == {(): 1})
            wait_until(lambda: values(measure(), "relay_cancelled_total") == {(): 3})
    samples = measure()  # the last totals, after the relay was closed
    assert {each.labels[0] for each in samples} == {cluster.name}
    assert values(samples, "relay_delivered_total") == {(): 24}  # with the record that became a dead letter
    assert values(samples, "relay_lateness_seconds") == {(): 24}
    [lateness] = [each.value for each in samples if each.name == "headway_relay_lateness_seconds"]
    assert isinstance(lateness, HistogramValue)
    assert lateness.sum > 21 * 4
    assert values(samples, "relay_moved_total")[long,] >= 3
    assert (cluster.names.commands,) not in values(samples, "relay_moved_total")
    assert values(samples, "relay_takeovers_total") == {(): 2}
    assert values(samples, "relay_transactions_total")[()] >= 2
    assert values(samples, "relay_aborts_total") == {(): 0}
    assert values(samples, "relay_refused") == {(): 0}
    pending = values(samples, "relay_pending")
    assert pending[long,] >= 3
    assert pending[soon,] < 10
    assert {each.name for each in samples} <= METRICS.keys()


def test_lateness_counts_from_the_due_time_and_librdkafkas_statistics_are_joined_in(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        scheduler.send_later(b"k", b"x", cluster.target, -100).wait(30)
    settings = {**cluster.config, **QUICK, "client.id": "till", "statistics.interval.ms": 100}
    with Relay(settings, name=cluster.name) as relay:
        measure = relay.measure()
        assert values(measure(), "relay_overdue_seconds") == {}

        def is_over() -> bool:
            has_delivered = values(measure(), "relay_delivered_total")[()] == 1
            return has_delivered and bool(values(measure(), "librdkafka_requests_total"))

        relay.run(is_over)
    [lateness] = [each.value for each in measure() if each.name == "headway_relay_lateness_seconds"]
    assert isinstance(lateness, HistogramValue)
    assert 100 <= lateness.sum < 200
    assert {each.labels[0] for each in measure() if "librdkafka" in each.name} == {"till"}


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_green(probes: Probes, path: str) -> Callable[[], bool]:
    return lambda: get(probes.address, path) == (200, "ok\n")


def test_a_relay_is_ready_while_it_works(cluster: DelayCluster) -> None:
    relay = Relay({**cluster.config, **QUICK}, name=cluster.name)
    with serve_probes(relay, "127.0.0.1:0") as probes, relay:
        status, text = get(probes.address, "/readyz")
        assert (status, "has not started yet" in text) == (503, True)
        assert is_green(probes, "/livez")()
        thread = threading.Thread(target=relay.run)
        thread.start()
        wait_until(lambda: relay.ready)
        wait_until(is_green(probes, "/readyz"))
        assert f'headway_relay_takeovers_total{{group="{cluster.name}"}} 2.0' in get(probes.address, "/metrics")[1]
        relay.stop()
        thread.join()
        status, text = get(probes.address, "/readyz")
        assert (status, "stopping or has ended" in text) == (503, True)
        assert is_green(probes, "/livez")()


def test_a_relay_that_completes_no_round_is_not_live(cluster: DelayCluster) -> None:
    """Its thread is held up in the function of the user that `run` asks."""
    relay, go_on, is_held = Relay({**cluster.config, **QUICK}, name=cluster.name), threading.Event(), threading.Event()

    def until() -> bool:
        if relay.ready and not go_on.is_set():
            is_held.set()
            assert go_on.wait(60)
        return False

    with serve_probes(relay, "127.0.0.1:0", stalls_after=1.5) as probes, relay:
        thread = threading.Thread(target=relay.run, args=(until,))
        thread.start()
        assert is_held.wait(60)
        wait_until(lambda: get(probes.address, "/livez")[0] == 503)
        assert "has not completed a round for" in get(probes.address, "/livez")[1]
        go_on.set()
        wait_until(is_green(probes, "/livez"))
        wait_until(is_green(probes, "/readyz"))
        relay.stop()
        thread.join()


def test_the_command_serves_the_metrics_of_its_relay(cluster: DelayCluster) -> None:
    command = [sys.executable, "-c", "from headway.cli import main; main()", "relay", "--name", cluster.name]
    servers = ["--bootstrap-servers", cluster.config["bootstrap.servers"], "--probes", "127.0.0.1:0"]
    process = subprocess.Popen([*command, *servers], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines: Any = iter(process.stderr.readline, "")
        address = next(found[1] for line in lines if (found := re.search(r"http://([\d.:]+)/livez", line)))
        wait_until(lambda: get(address, "/readyz") == (200, "ok\n"))
        with cluster.scheduler() as scheduler:
            scheduler.send_later(b"k", b"x", cluster.target, 0)
        cluster.wait_for(1)
        delivered = f'headway_relay_delivered_total{{group="{cluster.name}"}} 1.0'
        wait_until(lambda: delivered in get(address, "/metrics")[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
