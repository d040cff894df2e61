"""The move of examples/moved: the worker goes on where three plain consumers have left off, and they after it."""

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import confluent_kafka as ck
import pytest

from headway import create_topic
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import send, wait_for

pytestmark = pytest.mark.kafka

MOVED = Path(__file__).parents[3] / "examples" / "moved"


def read_plainly(cluster: Cluster, group: str, topics: Collection[str], count: int) -> set[str]:
    """Read as the programs before: one member of the group, that commits what it has read."""
    config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    values = set[str]()
    with closing(ck.Consumer(cluster.config(config) | {"log_level": 0})) as consumer:
        consumer.subscribe(list(topics))
        while len(values) < count:
            message = consumer.poll(10)
            assert message is not None
            values.add((message.value() or b"").decode())
        consumer.commit(asynchronous=False)
    return values


def test_the_worker_goes_on_where_the_programs_left_off_and_they_where_it_did(
    kafka_cluster: Cluster, headway_topic: str, tmp_path: Path
) -> None:
    jobs, log = f"jobs-{headway_topic[-8:]}", tmp_path / "jobs.log"
    topics = [f"{jobs}-low", jobs, f"{jobs}-urgent"]
    for topic in topics:
        create_topic(kafka_cluster.config({}), topic)
        send(kafka_cluster, topic, [("key", f"{topic} before")])
    assert read_plainly(kafka_cluster, f"{jobs}-workers", topics, 3) == {f"{topic} before" for topic in topics}
    for topic in topics:
        send(kafka_cluster, topic, [("key", f"{topic} moved")])
    command = [sys.executable, "-c", "from headway.cli import main; main()", "worker", "moved"]
    env = {"HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers, "JOBS": jobs, "JOBS_LOG": str(log)}
    with subprocess.Popen(command, cwd=MOVED, env=os.environ | env) as worker:
        try:
            wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 3)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
    assert set(log.read_text().splitlines()) == {f"{level} {topic} moved" for level, topic in enumerate(topics)}
    for topic in topics:
        send(kafka_cluster, topic, [("key", f"{topic} back")])
    assert read_plainly(kafka_cluster, f"{jobs}-workers", topics, 3) == {f"{topic} back" for topic in topics}
