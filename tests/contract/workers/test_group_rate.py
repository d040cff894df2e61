"""A rate limit is the group's: real processes of real commands, which join and leave, on a real Apache Kafka."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from tests.contract.conftest import Cluster
from tests.contract.parallel.members import send, topic_of, wait_for

pytestmark = pytest.mark.kafka

PARTITIONS = 12
RATE = 120
MEASURED = 5.0  # seconds

MODULE = """
import os, time
from headway import worker

notes = os.open({notes!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@worker("{topic}", group="{topic}", rate_limit={rate}, config={{"session.timeout.ms": 6000}})
def handle(record):
    os.write(notes, f"{{os.getpid()}} {{time.monotonic()}}\\n".encode())
"""


@pytest.mark.slow
def test_a_group_keeps_its_rate_limit_whichever_processes_join_and_leave(
    kafka_cluster: Cluster, tmp_path: Path
) -> None:
    topic, notes = topic_of(kafka_cluster, PARTITIONS), tmp_path / "notes"
    for partition in range(PARTITIONS):
        send(kafka_cluster, topic, [(None, "v")] * 1000, partition)
    (tmp_path / "shop.py").write_text(MODULE.format(topic=topic, notes=str(notes), rate=RATE))
    env = os.environ | {"HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers}

    with ExitStack() as stack:

        def start(processes: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", "from headway.cli import main; main()", "worker", "shop"]
            started = subprocess.Popen([*command, "--processes", str(processes)], cwd=tmp_path, env=env)
            stack.enter_context(started)
            stack.callback(started.kill)  # and its members end with it
            return started

        first = start(4)
        assert_rate_of(kafka_cluster, topic, notes, members=4)
        second = start(2)
        assert_rate_of(kafka_cluster, topic, notes, members=6)
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        assert_rate_of(kafka_cluster, topic, notes, members=2)
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    assert most_within(notes, 1.0) <= RATE + 6 * RATE / 20 + 6  # a second and what each member may start at once


def assert_rate_of(cluster: Cluster, topic: str, notes: Path, members: int) -> None:
    """When a group has so many members and rests, it starts as many records as its limit says."""
    admin = AdminClient(cluster.config({"log_level": 0}))

    def is_settled() -> bool:
        with suppress(ck.KafkaException):  # a broker that has just started has no coordinator yet
            described = admin.describe_consumer_groups([topic])[topic].result(30)
            return described.state.name == "STABLE" and len(described.members) == members
        return False

    wait_for(is_settled, 60)
    since = time.monotonic()
    wait_for(lambda: len({pid for pid, at in noted(notes) if at > since}) == members, 30)
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() > begin + MEASURED)
    count = sum(begin <= at < begin + MEASURED for _, at in noted(notes))
    assert count / MEASURED == pytest.approx(RATE, rel=0.05)


def noted(notes: Path) -> list[tuple[int, float]]:
    """Each process that started a record, and when."""
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    return [(int(pid), float(at)) for pid, at in lines]


def most_within(notes: Path, seconds: float) -> int:
    """The most records that started within so many seconds."""
    times = sorted(at for _, at in noted(notes))
    first = most = 0
    for last, at in enumerate(times):
        while times[first] < at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most
