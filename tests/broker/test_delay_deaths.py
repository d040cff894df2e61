"""Relays that are killed at each step of their work, and what their successors deliver."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from headway.broker import LocalBroker
from tests.broker.delay_cluster import ROOT, DelayCluster

STEPS = [
    "before produce",
    "after produce",
    "before flush",
    "after flush",
    "after add_offsets",
    "within commit",
    "after commit",
    "after delete_before",
]
IN_TRANSACTIONS = [("delivery", step) for step in STEPS] + [("move", step) for step in STEPS[1:-1:2]]
AT_ONCE = [
    ("delivery", "after produce"),
    ("delivery", "before add_offsets"),
    ("delivery", "after commit"),
    ("move", "after produce"),
]


@pytest.mark.slow
def test_a_relay_that_dies_at_any_step_leaves_a_successor_that_loses_and_doubles_nothing(
    headway_broker: LocalBroker,
) -> None:
    for step, scheduled, delivered in die_and_go_on(headway_broker, "exactly-once", IN_TRANSACTIONS):
        assert delivered == sorted(scheduled), step


@pytest.mark.slow
def test_with_low_latency_a_relay_that_dies_at_any_step_loses_nothing(headway_broker: LocalBroker) -> None:
    for step, scheduled, delivered in die_and_go_on(headway_broker, "low-latency", AT_ONCE):
        assert set(delivered) == set(scheduled), step


# Some to be delivered from memory, some from a delay topic, and those due in 8 seconds are moved from one delay topic
# to another: after 4 seconds, and also if a relay is late by more than 2, as many at once on a busy machine are.
DELAYS = [0.1, 0.1, 0.5, 1.2, 1.2, 7.8, 7.8, 7.85, 7.9, 7.9]
ALL_ARE_DUE = 15.0
ROUNDS = 6  # a relay that its group expelled just then, as on a busy machine it can, comes to its step in a later one


def die_and_go_on(
    broker: LocalBroker, mode: str, steps: Iterable[tuple[str, str]]
) -> list[tuple[tuple[str, str], list[bytes], list[bytes]]]:
    """What was scheduled and delivered in spite of each death; all at the same time, since most of it is waiting."""
    steps = list(steps)
    all_are_ready = threading.Barrier(len(steps))  # none starts up while another has to be in time

    def delivered(step: tuple[str, str]) -> tuple[tuple[str, str], list[bytes], list[bytes]]:
        cluster = DelayCluster(broker.bootstrap_servers, partitions=1)
        with dying_relay(cluster, mode, *step) as relay:
            all_are_ready.wait(120)
            scheduled = schedule_until_it_dies(cluster, relay)
            assert relay.returncode == -signal.SIGKILL, step
        with cluster.relay(mode=mode):
            cluster.wait_for_keys(scheduled)
        return step, scheduled, sorted(message.key() for message in cluster.read())

    with ThreadPoolExecutor(len(steps)) as threads:
        return list(threads.map(delivered, steps))


def schedule_until_it_dies(cluster: DelayCluster, relay: "subprocess.Popen[str]") -> list[bytes]:
    """The keys of what was scheduled."""
    keys: list[bytes] = []
    with cluster.scheduler() as scheduler:
        for _ in range(ROUNDS):
            for delay in DELAYS:
                keys.append(b"%d" % len(keys))
                scheduler.send_later(keys[-1], b"v", cluster.target, delay)
            with suppress(subprocess.TimeoutExpired):
                relay.wait(ALL_ARE_DUE)
                break
    return keys


@contextmanager
def dying_relay(cluster: DelayCluster, mode: str, kind: str, step: str) -> Iterator["subprocess.Popen[str]"]:
    """One that is ready, and dies at that step."""
    command = [sys.executable, "-m", "tests.broker.dying_relay", cluster.config["bootstrap.servers"], cluster.name]
    with subprocess.Popen([*command, mode, kind, step], cwd=ROOT, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            assert relay.stdout.readline() == "ready\n"
            yield relay
        finally:
            relay.kill()
