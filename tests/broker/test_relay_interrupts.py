"""Ctrl-C at any step, twice: a relay always ends, and leaves nothing behind."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headway import Relay, Scheduler
from headway.broker import LocalBroker
from headway.delay.relay.restarts import Restarts
from headway.kafka.consumer.relay_consumer import RelayConsumer
from tests.broker.delay_cluster import DelayCluster, wait_until
from tests.interrupts import nothing_left, two_interrupts

# Python tells of an interrupt that came where it cannot raise one, as while an object goes.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ANCHORS: list[Callable[..., Any]] = [Relay.run, Restarts.begun, RelayConsumer.fetch, Relay.close]
NAMES = [anchor.__name__ for anchor in ANCHORS]


@pytest.fixture(scope="module")
def name(headway_broker: LocalBroker) -> str:
    with Scheduler(headway_broker.client_config(), name="interrupted") as scheduler:
        scheduler.send_later(None, "first", "orders", 0).wait(30)
    return "interrupted"


def run(broker: LocalBroker, name: str, anchor: Callable[..., Any], seed: int) -> None:
    """Run and close a relay, interrupted twice from somewhere on."""
    relay = Relay(broker.client_config(), name=name, mode="low-latency" if seed % 2 else "exactly-once")
    try:
        with two_interrupts(anchor, seed), relay:
            relay.run(until=lambda: relay.ready)
    except KeyboardInterrupt:
        pass
    relay.close()


@pytest.mark.interrupts
@pytest.mark.parametrize("anchor", ANCHORS, ids=NAMES)
def test_a_relay_that_is_interrupted_twice_at_any_step_ends(
    headway_broker: LocalBroker, name: str, anchor: Callable[..., Any]
) -> None:
    for seed in range(2):
        with nothing_left():
            run(headway_broker, name, anchor, seed)


@pytest.mark.slow
@pytest.mark.interrupts
@pytest.mark.parametrize("anchor", ANCHORS, ids=NAMES)
def test_a_relay_that_is_interrupted_twice_at_each_of_many_steps_ends(
    headway_broker: LocalBroker, name: str, anchor: Callable[..., Any]
) -> None:
    for seed in range(100, 120):
        with nothing_left():
            run(headway_broker, name, anchor, seed)


@pytest.mark.quick("at once")
@pytest.mark.parametrize("apart", [0.0, 0.02], ids=["at once", "20 ms apart"])
def test_a_relay_that_gets_two_ctrl_c_ends_and_each_record_is_delivered_once(
    headway_broker: LocalBroker, apart: float
) -> None:
    cluster = DelayCluster(headway_broker.bootstrap_servers)
    command = [sys.executable, "-c", "from headway.cli import main; main()", "relay", "--name", cluster.name]
    with cluster.scheduler() as scheduler:
        for number in range(400):
            scheduler.send_later(f"{number}", f"{number}", cluster.target, 0)
    with subprocess.Popen(
        [*command, "-b", headway_broker.bootstrap_servers], stderr=subprocess.PIPE, text=True
    ) as relay:
        assert relay.stderr is not None
        wait_until(lambda: "has partitions" in str(relay.stderr.readline()))  # type: ignore[union-attr]
        relay.send_signal(signal.SIGINT)
        time.sleep(apart)
        relay.send_signal(signal.SIGINT)
        assert relay.wait(30) == 130
    with cluster.relay():
        cluster.wait_for(400)
    assert Counter(message.key() for message in cluster.read()) == {f"{number}".encode(): 1 for number in range(400)}
