"""`headway top` in a terminal, and without one, against Apache Kafka."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Self

import confluent_kafka as ck
import pytest

from headway.core.levels.naming import level_topic
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.kafka.binding import capi
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

WITHIN = 60.0
MAP = OffsetMap(2, (1, 3, 2, 2))

_sequence = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")

# Only in a terminal that is the process's own does Ctrl-C reach it.
_PROGRAM = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from headway.cli import main
main()
"""


class Terminal:
    """A program in a pseudo-terminal, and what it has drawn since the last key."""

    def __init__(self, arguments: list[str], servers: str, columns: int = 140, lines: int = 30) -> None:
        self.descriptor, inner = pty.openpty()
        self.resize(columns, lines)
        environment = {**os.environ, "TERM": "xterm-256color", "HEADWAY_BOOTSTRAP_SERVERS": servers}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        command = [sys.executable, "-c", _PROGRAM, *arguments]
        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
        )
        os.close(inner)
        self.drawn = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.descriptor)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        self.drawn = ""
        os.write(self.descriptor, keys.encode())

    def until(self, text: str) -> str:
        """Wait until a text is drawn, and return all that was drawn."""
        deadline = time.monotonic() + WITHIN
        while text not in self.drawn:
            assert time.monotonic() < deadline, self.drawn[-3_000:]
            if not self._read():
                assert text in self.drawn, self.drawn[-3_000:]
        return self.drawn

    def end(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        deadline = time.monotonic() + WITHIN
        while self._read() and time.monotonic() < deadline:
            pass
        return self.process.wait(WITHIN)

    def _read(self) -> bool:
        if select.select([self.descriptor], [], [], 0.1)[0]:
            try:
                content = os.read(self.descriptor, 65_536)
            except OSError:  # the other side is closed
                return False
            self.drawn += _sequence.sub("", content.decode(errors="replace"))
        return True


@pytest.fixture
def group(kafka_cluster: Cluster) -> str:
    """A group with an offset map, whose topic has a record with a hostile key that is not done."""
    topic = kafka_cluster.topic(levels=1)
    name, group = level_topic(topic, 0), f"{topic}-mailing"
    producer = kafka_cluster.plain_producer()
    for _ in range(10):
        producer.produce(name, b"x", key=b"[bold]\x1b[2J", partition=1)
    assert producer.flush(20) == 0
    consumer = ck.Consumer(kafka_cluster.config({"group.id": group, "log_level": 2}))
    refused = None
    while refused is None or any("oordinator" in str(error) for error in refused.values()):  # while Kafka makes one
        refused = capi.PendingCommit(consumer, {(name, 1): (2, encode(MAP).encode())}).refused(20)
    consumer.close()
    assert refused == {}
    return group


def test_it_shows_its_views_key_by_key_and_q_ends_it(kafka_cluster: Cluster, group: str) -> None:
    arguments = ["top", "--group", group, "--refresh", "0.3"]
    with Terminal(arguments, kafka_cluster.bootstrap_servers) as terminal:
        terminal.until("not done")
        terminal.until(group)
        terminal.press("2")
        assert "·███··██" in terminal.until("log end")
        terminal.press("/")
        terminal.press("nowhere\r")
        terminal.until("No row contains 'nowhere'")
        terminal.press("\x1b")
        terminal.until("·███··██")
        terminal.press("\x1b[C")  # →
        terminal.until("No record holds back")
        terminal.press("?")
        terminal.until("Any key closes this page.")
        terminal.press(" ")
        terminal.until("No record holds back")
        terminal.resize(60, 12)
        terminal.press("1")
        terminal.until("1 levels")
        terminal.press("q")
        assert terminal.end() == 0


def test_ctrl_c_ends_it_at_once_and_leaves_the_terminal_as_it_was(kafka_cluster: Cluster, group: str) -> None:
    with Terminal(["top", "--group", group], kafka_cluster.bootstrap_servers) as terminal:
        before = termios.tcgetattr(terminal.descriptor)
        terminal.until(group)
        began = time.monotonic()
        terminal.press("\x03")
        assert terminal.end() == 130
        assert time.monotonic() - began < WITHIN / 4
        assert "Traceback" not in terminal.drawn
        assert termios.tcgetattr(terminal.descriptor)[3] == before[3]


def run(kafka_cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", "top", *arguments, "-b", kafka_cluster.bootstrap_servers]
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)


@pytest.mark.slow  # the test of --json below watches for as long
def test_without_a_terminal_it_prints_once_without_colours(kafka_cluster: Cluster, group: str) -> None:
    ran = run(kafka_cluster, "--group", group)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    [row] = [line.split() for line in ran.stdout.splitlines() if line.split()[1:2] == ["0"]]
    assert row[2:4] == [group, "3"]


def test_json_has_the_figures_of_kafka(kafka_cluster: Cluster, group: str) -> None:
    ran = run(kafka_cluster, "--group", group, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    [queue] = json.loads(ran.stdout)["queues"]
    [level] = queue["levels"]
    [partition] = [each for each in level["partitions"] if each["partition"] == 1]
    assert (queue["group"], level["not_done"], partition["committed"], partition["log_end"]) == (group, 3, 2, 10)
    assert partition["incomplete"] == [{"start": 2, "end": 3}, {"start": 6, "end": 8}]
    assert partition["stuck"]["key"] == "[bold]\x1b[2J"


def test_a_kafka_that_does_not_answer_is_one_sentence() -> None:
    command = [sys.executable, "-m", "headway", "top", "-b", "127.0.0.1:1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("headway: Kafka cannot be reached at 127.0.0.1:1")
    assert len(ran.stderr.splitlines()) == 1
