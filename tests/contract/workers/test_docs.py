"""The program in docs/workers.md does what it says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway import Producer
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import plain_topic, read, send

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[3] / "docs" / "workers.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_worker_of_the_page_bills_orders(kafka_cluster: Cluster, tmp_path: Path) -> None:
    topic, dead = kafka_cluster.topic(), plain_topic(kafka_cluster)
    program = PROGRAMS[0]
    program = program.replace('"orders"', repr(topic)).replace('"orders-dead"', repr(dead))
    (tmp_path / "billing.py").write_text(program.replace('"billing"', repr(topic)))
    with Producer(kafka_cluster.config({"levels": 3})) as producer:
        producer.send(topic, b'{"number": 7, "amount": 9.5}', level=2)
    command = [sys.executable, "-c", "from headway.cli import main; main()", "worker", "billing", "--processes", "2"]
    env = os.environ | {"HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "9.5 for order 7\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


POOL = """
class Pool:
    async def __aenter__(self):
        print("the pool is open", flush=True)
        return self

    async def __aexit__(self, *error):
        print("the pool is closed", flush=True)

    async def execute(self, statement, *values):
        print(*values, flush=True)


def create_pool(address):
    return Pool()
"""


@pytest.mark.slow
def test_handlers_share_a_pool_a_producer_and_a_scheduler(kafka_cluster: Cluster, tmp_path: Path) -> None:
    """PostgreSQL's place is taken by a stand-in; the producer and the scheduler are real."""
    topic, copies = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    [program] = (each for each in PROGRAMS if "asyncpg" in each)
    program = program.replace('"orders"', repr(topic)).replace('"confirmations"', repr(copies))
    program = program.replace("AsyncScheduler(settings)", f"AsyncScheduler(settings, name={topic!r})")
    (tmp_path / "shop.py").write_text(program.replace('"shop"', repr(topic)))
    (tmp_path / "asyncpg.py").write_text(POOL)
    send(kafka_cluster, topic, [("customer", "order 7")], partition=1)
    command = [sys.executable, "-c", "from headway.cli import main; main()", "worker", "shop"]
    env = os.environ | {"HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "the pool is open\n"
            assert process.stdout.readline() == f"{topic}-1-0\n"
            [copy] = read(kafka_cluster, copies, 1)
            assert (copy.key(), copy.value()) == (b"customer", b"order 7")
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "the pool is closed\n"
            assert process.wait(30) == 0
        finally:
            process.kill()
