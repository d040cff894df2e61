"""The shop of examples/outbox: the relay and the worker are processes that are killed while they work."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from headway import create_topic
from headway.contrib.outbox import Outbox
from tests.broker.delay_cluster import wait_until
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

FOLDER = Path(__file__).parents[3] / "examples" / "outbox"
HEADWAY = [sys.executable, "-c", "from headway.cli import main; main()"]


@contextmanager
def started(*command: str, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is killed at the end."""
    with subprocess.Popen([*HEADWAY, *command], cwd=FOLDER, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_each_order_is_booked_once_although_relay_and_worker_are_killed(
    kafka_cluster: Cluster, headway_topic: str, tmp_path: Path
) -> None:
    shop, bank, topic = tmp_path / "shop.db", tmp_path / "bank.db", f"payments-{headway_topic[-8:]}"
    env = os.environ | {
        "HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers,
        "HEADWAY_OUTBOX_DATABASE": f"sqlite:///{shop}",
        "BANK_DATABASE": f"sqlite:///{bank}",
        "PAYMENTS": topic,
    }
    create_topic(kafka_cluster.config({}), topic, levels=2)
    subprocess.run([sys.executable, "outbox_shop.py", "ann", "1500"], cwd=FOLDER, env=env, check=True)
    engine, outbox = create_engine(f"sqlite:///{shop}"), Outbox(levels=2)
    with engine.begin() as connection:
        for cents in range(1, 400):
            connection.execute(outbox.insert(topic, str(cents), key=f"c{cents % 3}"))
    engine.dispose()

    def booked() -> int:
        with closing(sqlite3.connect(bank, timeout=30)) as connection:
            return int(connection.execute("select coalesce(sum(cents), 0) from accounts").fetchone()[0])

    run, work = ("outbox", "run", "--name", topic), ("worker", "outbox_shop")
    with started(*run, **env):
        with started(*work, **env):
            wait_until(lambda: booked() > 2000)
        with started(*work, **env):
            wait_until(lambda: booked() >= 1500 + sum(range(1, 400)))
    assert booked() == 1500 + sum(range(1, 400))
