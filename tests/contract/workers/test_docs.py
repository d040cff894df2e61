"""The program in docs/workers.md does what it says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway import PriorityProducer
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import plain_topic

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[3] / "docs" / "workers.md"


def test_the_worker_of_the_page_bills_orders(kafka_cluster: Cluster, tmp_path: Path) -> None:
    topic, dead = kafka_cluster.topic(), plain_topic(kafka_cluster)
    program, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = program.replace('"orders"', repr(topic)).replace('"orders-dead"', repr(dead))
    (tmp_path / "billing.py").write_text(program.replace('"billing"', repr(topic)))
    with PriorityProducer(kafka_cluster.config({"levels": 3})) as producer:
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
