"""The README's programs do what it says."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Cluster

README = Path(__file__).parents[2] / "README.md"


class SeenEnough(BaseException):
    """Ends a program that would go on for ever."""


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(program: str, cluster: Cluster, topic: str, prints: int) -> list[tuple[Any, ...]]:
    printed: list[tuple[Any, ...]] = []

    def note(*values: Any) -> None:
        printed.append(values)
        if len(printed) == prints:
            raise SeenEnough

    program = program.replace("localhost:9092", cluster.bootstrap_servers).replace('"orders"', repr(topic))
    program = program.replace('"billing"', repr(topic))
    with pytest.raises(SeenEnough):
        exec(compile(program, "README.md", "exec"), {"print": note})  # noqa: S102 - our own text
    return printed


def test_the_first_programs_of_the_readme_send_and_receive_by_priority(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    send, receive, *_ = programs()
    [(said, metadata)] = run(send, kafka_cluster, topic, prints=1)
    assert said == "delivered at"
    assert (metadata.topic, metadata.level) == (topic, 2)
    records = run(receive, kafka_cluster, topic, prints=1001)
    assert [value for level, _, value in records if level == 2] == [b"ship at once"]
    assert len({value for _, _, value in records}) == 1001


def test_the_programs_are_as_short_as_promised() -> None:
    send, receive, *_ = programs()
    assert len(send.splitlines()) <= 15
    assert len(receive.splitlines()) <= 15


def test_the_readme_says_what_each_extra_is_for() -> None:
    extras = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras:
        assert f"| `{extra}` |" in README.read_text()
