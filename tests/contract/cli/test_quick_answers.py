"""Commands that only look answer quickly: they import no more than a look needs."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway import create_topic
from headway.broker import LocalBroker
from headway.delay.topics import create_topics

pytestmark = pytest.mark.kafka

NOT_NEEDED = (
    "rich",
    "headway.broker",
    "headway.delay.relay",
    "headway.delay.scheduler",
    "headway.execution",
    "headway.parallel",
    "headway.priority",
    "headway.spark",
)
"""Each takes a tenth of a second to import, or more; see `python -X importtime`."""

LOOK = """
import sys
from headway.cli import headway
headway({arguments!r}, standalone_mode=False)
print(*sorted(sys.modules))
"""


def imported_by(arguments: Sequence[str], servers: str) -> list[str]:
    program = LOOK.format(arguments=[*arguments, "--bootstrap-servers", servers])
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1].split()


def not_needed(modules: Sequence[str], names: Sequence[str] = NOT_NEEDED) -> list[str]:
    return [each for each in modules if any(each == name or each.startswith(f"{name}.") for name in names)]


@pytest.mark.quick("list")
@pytest.mark.parametrize("command", ["list", "stats"])
def test_a_look_at_schedules_of_which_none_is_pending_imports_neither_a_table_nor_a_producer(
    headway_broker: LocalBroker, headway_topic: str, command: str
) -> None:
    create_topics(headway_broker.client_config(), headway_topic, partitions=1)
    modules = imported_by(["schedule", command, "--name", headway_topic], headway_broker.bootstrap_servers)
    assert "headway.delay.pending" in modules
    assert not_needed(modules) == []


def test_a_look_at_dead_letters_of_which_there_are_none_imports_no_table(
    headway_broker: LocalBroker, headway_topic: str
) -> None:
    create_topic(headway_broker.client_config(), headway_topic)
    modules = imported_by(["dead", "list", headway_topic], headway_broker.bootstrap_servers)
    assert "headway.inspection.dead_topic" in modules
    assert not_needed(modules) == []


def test_the_question_where_a_broker_runs_imports_nothing_that_starts_one(tmp_path: Path) -> None:
    program = "import sys; from headway.environment import local_broker; print(local_broker(), *sorted(sys.modules))"
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment, check=True
    )
    where, *modules = ran.stdout.split()
    assert where == "None"
    assert "headway.broker.data_dir" in modules
    assert not_needed(modules, ["headway.broker.local_broker", "headway.broker.java", "headway.kafka"]) == []
