"""The programs of docs/producer.md run."""

import re
from pathlib import Path

import pytest

from tests.contract.conftest import Cluster

PAGE = Path(__file__).parents[3] / "docs" / "producer.md"


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_programs_do_what_they_say(
    kafka_cluster: Cluster, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka_cluster.topic()
    program = program.replace("localhost:9092", kafka_cluster.bootstrap_servers)
    program = program.replace('"orders"', repr(topic if "levels" in program else f"{topic}-0"))
    exec(compile(program, PAGE.name, "exec"), {})  # noqa: S102 - our own text
    assert capsys.readouterr().out.startswith(("delivered at RecordMetadata", "delivered: 10000", "left: 0"))
