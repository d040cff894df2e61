"""A search of everything that a query writes and shows for the secrets that it used."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from headway.broker import LocalBroker
from headway.kafka.admin import Admin
from tests.broker.test_secrets import command_lines, leaks, secrets_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_nothing_that_a_query_writes_or_shows_has_a_secret_that_it_used(
    headway_secure_broker: LocalBroker, tmp_path: Path
) -> None:
    broker, topic = headway_secure_broker, f"orders-{uuid.uuid4().hex[:8]}"
    Admin(broker.admin_config).create([f"{topic}-0", f"{topic}-out"], 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.spark.programs.secrets", str(broker.config_file("admin")), topic]
    with command_lines() as seen:
        done = subprocess.run(
            [*command, str(tmp_path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=280, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    told = {"output": done.stdout, "processes": "\n".join(seen)}
    told |= {str(each): each.read_bytes().decode("latin-1") for each in tmp_path.rglob("*") if each.is_file()}
    assert "rows 0" in done.stdout
    assert "Spark Properties" in done.stdout
    assert leaks(told, secrets_of(broker)) == []
