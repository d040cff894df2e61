"""A member is killed at each step of an edit: each record has one fate, and the asker is told which."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.waiting import Fate, WaitingRecords
from tests.contract.conftest import Cluster
from tests.contract.parallel.edit_program import STEPS
from tests.contract.parallel.members import OFTEN, read, send, settings_of, topic_of, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

KEYS = "abcdef"


class Scene:
    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.topic, self.output, self.other = topic_of(cluster, 1), topic_of(cluster, 1), topic_of(cluster, 1)
        self.go_on = directory / "go-on"
        self._directory = directory
        self._members: list[subprocess.Popen[bytes]] = []

    def join(self, step: str = "") -> subprocess.Popen[bytes]:
        """Start a member, and wait until its handler has begun."""
        begun = self._directory / f"begun-{len(self._members)}"
        asked: dict[str, Any] = {
            "config": self.cluster.config(settings_of(self.topic, **OFTEN)),
            "topic": self.topic,
            "output": self.output,
            "begun": str(begun),
            "go_on": str(self.go_on),
            "step": step,
        }
        program = str(Path(__file__).with_name("edit_program.py"))
        member = subprocess.Popen([sys.executable, program, json.dumps(asked)])
        self._members.append(member)
        wait_for(begun.exists, 60)
        return member

    def stored(self, topic: str, count: int) -> list[bytes | None]:
        """The keys of all records of a topic, which should be so many."""
        send(self.cluster, topic, [("end", "")])
        keys = [message.key() for message in read(self.cluster, topic, count + 1)]
        assert keys[-1] == b"end", keys
        return keys[:-1]

    def close(self) -> None:
        for member in self._members:
            member.kill()
            member.wait(30)


@contextmanager
def in_thread(call: Any) -> Iterator[list[Any]]:
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(call()))
    thread.start()
    yield returned
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize("step", STEPS)
def test_each_record_has_one_fate_if_the_owner_is_killed(kafka_cluster: Cluster, tmp_path: Path, step: str) -> None:
    scene = Scene(kafka_cluster, tmp_path)
    send(kafka_cluster, scene.topic, [(key, f"value of {key}") for key in KEYS])
    try:
        first = scene.join(step)
        with WaitingRecords(kafka_cluster.config({}), scene.topic, scene.topic) as waiting:
            to_move, to_drop = waiting.records(where="key in (b, d)"), waiting.records(key="e")
            with in_thread(lambda: waiting.move(to_move, scene.other, timeout=90)) as moved:
                assert first.wait(60) == -9
                scene.join()
            assert [(each.offset, each.fate) for each in moved[0]] == [(1, Fate.DONE), (3, Fate.DONE)]
            assert [(each.offset, each.fate) for each in waiting.drop(to_drop, timeout=60)] == [(4, Fate.DONE)]
            scene.go_on.touch()
            wait_for(lambda: not waiting.records(limit=1), 60)
        assert scene.stored(scene.output, 3) == [b"a", b"c", b"f"]
        assert scene.stored(scene.other, 2) == [b"b", b"d"]
    finally:
        scene.close()
