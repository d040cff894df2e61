"""A search of everything that a run writes for the secrets that it used."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headway.broker import LocalBroker
from headway.kafka.admin import Admin

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).with_name("secrets_program.py")
ROOT = Path(__file__).parents[2]


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Collect the command lines and environments of all that this process starts, as anybody may read them."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.02):
            for process in me.children(recursive=True):
                try:
                    seen.update((" ".join(process.cmdline()), str(process.environ())))
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def secrets_of(broker: LocalBroker) -> list[str]:
    """Return the passwords, and a line of each private key, which is enough to know it by."""
    files = broker.data_dir / "security"
    keys = [*files.glob("*.pem"), files / "ca.key"]
    return [each.read_text() for each in files.glob("*.password")] + [each.read_text().splitlines()[1] for each in keys]


def leaks(told: dict[str, str], secrets: list[str]) -> list[tuple[str, str]]:
    return [(where, secret) for where, text in told.items() for secret in secrets if secret in text]


def run(*command: object, cwd: Path, environment: dict[str, str]) -> str:
    """Run a command to its end; return what it wrote."""
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=120, check=False, input="sent\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_nothing_that_a_run_writes_has_a_secret_that_it_used(
    headway_secure_broker: LocalBroker, headway_topic: str, tmp_path: Path
) -> None:
    broker, topic = headway_secure_broker, headway_topic[-40:]
    file, headway = broker.config_file("admin"), Path(sys.executable).with_name("headway")
    Admin(broker.admin_config).create([f"{topic}-0"], 1)
    environment = {**os.environ, "HEADWAY_CONFIG_FILE": str(file), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    (tmp_path / "work.py").write_text(
        "from headway import worker\n\n\n"
        f"@worker('{topic}', group='{topic}-cli', levels=1)\n"
        "def handle(record, context):\n    print('handled', record.value, flush=True)\n"
    )
    told: dict[str, str] = {}
    with command_lines() as seen:
        told["clients"] = run(sys.executable, PROGRAM, file, topic, cwd=tmp_path, environment=environment)
        for command in (["topics", "list"], ["produce", topic], ["schedule", "list", "--name", f"{topic}-delay"]):
            told[" ".join(command)] = run(headway, *command, cwd=tmp_path, environment=environment)
        worker = subprocess.Popen(
            [headway, "worker", "work", "--log-level", "debug"],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert worker.stdout
        lines = [next(line for line in worker.stdout if "handled" in line)]
        worker.send_signal(signal.SIGTERM)
        told["worker"] = "".join([*lines, worker.communicate(timeout=60)[0]])
        assert worker.returncode == 0, told["worker"]
    told["processes"] = "\n".join(seen)
    # An index holds offsets only, and is 10 MB long from the start: those of all topics are gigabytes.
    own = [each for each in broker.data_dir.rglob("*") if each.parent.name != "security" and "index" not in each.suffix]
    files = [each for each in [*tmp_path.rglob("*"), *own] if each.is_file()]
    assert "handled" in told["worker"]
    assert "headway.cli.workers.member" in told["processes"]
    assert "ProducerSettings(" in told["clients"]
    assert "INFO:headway" in told["clients"]
    assert leaks({"here": f"...{broker.admin_config['sasl.password']}..."}, secrets_of(broker))
    assert leaks(told, secrets_of(broker)) == []
    for each in files:
        assert leaks({str(each): each.read_bytes().decode("latin-1")}, secrets_of(broker)) == []
