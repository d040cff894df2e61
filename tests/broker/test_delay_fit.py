"""Relays fit the delay topics to the delays that come in, on a real Kafka. They lose, double and delay nothing."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Relay
from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.core.delay.recent_delays import RecentDelays
from headway.delay.fit_records import delays_key
from headway.delay.topics import read_layout, store_in_ladder
from tests.broker.delay_cluster import ROOT, wait_until
from tests.broker.fitting_relay import MAX_DELAY_TOPICS
from tests.broker.test_delay_topics import FreshCluster

FIRST = (1000, 2000, 4000, 8000)


@pytest.fixture
def cluster(headway_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> FreshCluster:
    monkeypatch.setattr("headway.delay.delay_topic_choice.LAYOUT_LASTS", 0.2)
    monkeypatch.setattr("headway.delay.delay_topic_choice.LAYOUT_HOLDS_FOR", 0.5)
    return FreshCluster(headway_broker.bootstrap_servers)


class Relays:
    """Relays of one scheduler in processes of their own."""

    def __init__(self, cluster: FreshCluster, logs: Path) -> None:
        self._cluster = cluster
        self._logs = logs
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.broker.fitting_relay"]
        servers = self._cluster.config["bootstrap.servers"]
        with (self._logs / f"{len(self.running)}.log").open("wb") as log:
            started = subprocess.Popen([*command, servers, self._cluster.name], cwd=ROOT, stderr=log)
        self.running.append(started)

    def end(self) -> None:
        for relay in self.running:
            relay.kill()
            relay.wait()

    @property
    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self._logs.glob("*.log")))


@pytest.fixture
def relays(cluster: FreshCluster, tmp_path: Path) -> Iterator[Relays]:
    relays = Relays(cluster, tmp_path)
    yield relays
    relays.end()
    print(relays.logs)


def ladder_of(cluster: FreshCluster) -> tuple[int, ...]:
    layout = read_layout(cluster.config, cluster.name)
    assert layout is not None
    return layout.ladder.delays


@pytest.mark.slow
def test_lines_come_and_go_with_the_delays_while_relays_are_killed_and_each_record_is_delivered_once(
    cluster: FreshCluster, relays: Relays
) -> None:
    dues: dict[bytes, float] = {}
    with cluster.scheduler() as scheduler:

        def schedule(count: int, delay: float) -> None:
            for _ in range(count):
                key = f"{len(dues)}"
                dues[key.encode()] = scheduler.send_later(key, b"v", cluster.target, delay).due
            scheduler.flush()

        relays.start()
        relays.start()
        wait_until(lambda: ladder_of(cluster) == FIRST)  # no scheduler adds delay topics by itself any more
        schedule(15, 6)
        wait_until(lambda: 6000 in ladder_of(cluster))
        schedule(15, 6)
        assert 6000 in cluster.delay_topics
        relays.running[0].kill()  # one of them leads, so with the other in the second half both parts are seen to
        relays.start()
        deadline = time.monotonic() + 60
        while 6000 in ladder_of(cluster) and time.monotonic() < deadline:
            schedule(200, 1)  # few at a time are stored soon, and count
        assert 6000 not in ladder_of(cluster)
        schedule(100, 1)
        relays.running[1].kill()
        relays.start()
        wait_until(lambda: 6000 not in cluster.delay_topics)
        schedule(100, 1)
        cluster.wait_for(len(dues))
        wait_until(lambda: not cluster.pending())
    found = cluster.read()
    assert Counter(message.key() for message in found) == dict.fromkeys(dues, 1)
    late = [message.timestamp()[1] / 1000 - dues[message.key()] for message in found]
    assert min(late) + 1e-9 >= 0
    assert max(late) < 20
    assert len(cluster.delay_topics) - 1 <= MAX_DELAY_TOPICS


def test_a_relay_that_only_reports_says_which_lines_would_pay_and_changes_none(
    cluster: FreshCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.delay.relay.delay_topic_fitter.LOOK_EVERY", 0.1)
    caplog.set_level("INFO", "headway.delay")
    with cluster.scheduler() as scheduler, Relay(cluster.config, name=cluster.name, fit="report").running():
        for _ in range(20):
            scheduler.send_later("k", b"v", cluster.target, 7)
        wait_until(lambda: "would fit better" in caplog.text)
    assert "7 s" in caplog.text
    assert cluster.delay_topics == [0, *FIRST]
    assert ladder_of(cluster) == Ladder.exponential().delays


@pytest.mark.slow
def test_the_delays_of_the_relay_before_count_and_what_cannot_be_read_does_not(
    cluster: FreshCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.delay.relay.delay_topic_fitter.LOOK_EVERY", 0.1)
    with cluster.scheduler() as scheduler:
        now = int(time.time() * 1000)
        before = RecentDelays(now)
        before.add([86_400_000] * 10, now)
        for number in range(4):
            value = before.encode(now) if number else b"no JSON"
            store_in_ladder(cluster.config, cluster.names, {delays_key(number): value, "fit": b"[]"})
        with Relay(cluster.config, name=cluster.name, fit="auto").running():
            scheduler.send_later("k", b"v", cluster.target, 0.1)
            wait_until(lambda: 86_400_000 in cluster.delay_topics)
            cluster.wait_for_keys([b"k"])
