"""A relay with low latency that was frozen while another one took its place, on a real Apache Kafka."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from headway import Settled
from headway.broker import LocalBroker
from tests.broker.delay_cluster import ROOT, DelayCluster, wait_until
from tests.compacted import read_compacted


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="The state of a process is read as Linux shows it.")
@pytest.mark.parametrize("step", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_relay_that_wakes_when_another_has_its_place_does_not_store_what_it_decided_before(
    headway_broker: LocalBroker, step: str
) -> None:
    cluster = DelayCluster(headway_broker.bootstrap_servers, partitions=1)

    def members() -> int:
        groups = cluster.admin.describe_consumer_groups([cluster.name], request_timeout=10)
        return len(groups[cluster.name].result().members)

    command = [
        sys.executable,
        "-m",
        "tests.broker.frozen_relay",
        cluster.config["bootstrap.servers"],
        cluster.name,
        step,
    ]
    frozen = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        with cluster.scheduler() as scheduler:
            handle = scheduler.send_later("x", b"v", cluster.target, 60)
            moved = scheduler.reschedule(handle, 90)
            wait_until(lambda: process_state(frozen.pid) == "T")
            with cluster.relay(mode="low-latency") as other:
                wait_until(lambda: other.partitions)
                assert moved.settled(60) is Settled.RESCHEDULED
                assert scheduler.cancel(handle).settled() is Settled.CANCELLED
                frozen.send_signal(signal.SIGCONT)
                wait_until(lambda: members() == 2)  # it was expelled, has noticed, and has joined again
                time.sleep(0.5)  # for what it might still write
            stored = read_compacted(cluster.config, cluster.names.state, [0], 30)[0]
    finally:
        frozen.kill()
        frozen.wait()
    change = msgspec.json.decode(stored[f"change:{handle.id}"])
    assert change["due"] is None
