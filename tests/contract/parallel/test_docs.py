"""The programs in docs/parallel.md do what it says."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import ParallelConsumer
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import committed, plain_topic, send, wait_for

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[3] / "docs" / "parallel.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PRINTED = {
    0: (b"customer", b"order 1", 1),
    1: (b"customer", b"order 1", 1),
    5: (b"confirmed: order 1", 0),
    6: (0, b"confirmed: order 1", 0, 0),
    7: (1, "inserted"),
    8: (7,),
    9: (0, 7),
    10: (0, 7),
    11: (1,),
}
DECLARATIONS = {2, 3, 4}


@pytest.mark.parametrize("number", PRINTED)
def test_a_program_of_the_page_prints_what_it_says_and_commits_it(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    topic, dead, out = (plain_topic(kafka_cluster) for _ in range(3))
    names = {'"orders"': topic, '"orders-dead"': dead, '"confirmations"': out, '"totals"': out, '"billing"': topic}
    send(kafka_cluster, topic, [("customer", "order 1")], partition=0)
    consumers: list[ParallelConsumer] = []
    printed: list[tuple[Any, ...]] = []

    class Noted(ParallelConsumer):
        def __enter__(self) -> "Noted":
            consumers.append(self)
            return self

        async def __aenter__(self) -> "Noted":
            return self.__enter__()

    def stop() -> None:
        wait_for(lambda: printed)
        consumers[-1].stop()

    def run(program: str) -> None:
        program = program.replace("localhost:9092", kafka_cluster.bootstrap_servers)
        for name, ours in names.items():
            program = program.replace(name, repr(ours))
        exec(compile(program, PAGE.name, "exec"), variables)  # noqa: S102 - our own text

    variables: dict[str, Any] = {"print": lambda *values: printed.append(values)}
    monkeypatch.setattr(headway, "ParallelConsumer", Noted)
    for before in PROGRAMS[:number]:  # for what they define
        run(re.split(r"^(?:with |asyncio\.run)", before, flags=re.MULTILINE)[0])
    stopping = threading.Thread(target=stop)
    stopping.start()
    run(PROGRAMS[number])
    stopping.join()
    assert printed == [PRINTED[number]]
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


def test_no_program_of_the_page_is_left_out() -> None:
    assert set(range(len(PROGRAMS))) == PRINTED.keys() | DECLARATIONS


@pytest.mark.parametrize("number", DECLARATIONS)
def test_a_declaration_of_the_page_can_be_made(number: int) -> None:
    exec(compile(PROGRAMS[number], PAGE.name, "exec"), {})  # noqa: S102 - our own text
