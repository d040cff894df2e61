"""Whoever follows docs/tutorial.md sees what it says."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contract.conftest import Cluster

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
# The tests have a broker already, and the dashboard has tests of its own.
ELSEWHERE = ("headway broker", "headway dashboard")
RUNS_ON = ("headway worker", "headway relay")


class Reader:
    """Somebody who types what the tutorial says, with names of topics and groups that are not in use."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.topic = f"mails-{uuid4().hex[:8]}"
        self.logs: list[Path] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {
            "HEADWAY_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def save(self, program: str) -> None:
        [name] = re.findall(r"^# (\w+\.py)$", program, re.MULTILINE)
        text = program.replace('"mails-dead"', f'"{self.topic}-dead"').replace('"mails"', f'"{self.topic}"')
        (self.folder / name).write_text(text.replace('"mailer"', f'"{self.topic}"'))

    def type(self, command: str) -> str:
        """Run a command, or start one that runs on. Returns what it printed."""
        if command.startswith(ELSEWHERE):
            return ""
        command = re.sub(r"\b(create|produce|add) mails\b(?!-)", rf"\1 {self.topic}", command)
        command = command.replace("mails-dead", f"{self.topic}-dead").replace("mailer", self.topic)
        command = re.sub(r"headway (relay|schedule \w+)", rf"headway \1 --name {self.topic}-delay", command)
        if command.startswith(RUNS_ON):
            self.logs.append(self.folder / f"{len(self.logs)}.log")
            with self.logs[-1].open("wb") as log:
                started = subprocess.Popen(
                    shlex.split(command), cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT
                )
            self.processes.append(started)
            return ""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def worker_says(self) -> str:
        return self.logs[0].read_text()


@contextmanager
def reader(folder: Path, cluster: Cluster) -> Iterator[Reader]:
    somebody = Reader(folder, cluster)
    try:
        yield somebody
    finally:
        for process in somebody.processes:
            process.send_signal(signal.SIGTERM)
        for process in somebody.processes:
            process.wait(30)


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"Not within a minute: {what}"
        time.sleep(0.2)


def test_the_tutorial_works_as_it_is_written(tmp_path: Path, kafka_cluster: Cluster) -> None:
    blocks = re.findall(r"```(python|console)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with reader(tmp_path, kafka_cluster) as somebody:
        for kind, block in blocks:
            if kind == "python":
                somebody.save(block)
                continue
            for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
                if command.startswith("python send.py"):
                    until(lambda: "This member has joined" in somebody.worker_says(), "the worker joins its group")
                if command.startswith("headway dead list"):
                    until(lambda: "dead letter" in somebody.worker_says(), "a dead letter")
                printed = somebody.type(command)
                if command.startswith("headway dead list"):
                    assert "FatalError" in printed
                if command.startswith("headway dead show"):
                    assert "nowhere is not an address" in printed
                if command.startswith("headway schedule list"):
                    assert "max" in printed
        until(lambda: "how was it? to zoe@example.org" in somebody.worker_says(), "the delayed mail arrives")
        said = somebody.worker_says()
    assert "busy to max@example.org, attempt 3" in said
    lines = re.findall(r"level (\d): (newsletter|reset)", said)
    urgent = [level for level, _ in lines].index("2")
    assert urgent < 250, f"the urgent mail was number {urgent} of {len(lines)}"
