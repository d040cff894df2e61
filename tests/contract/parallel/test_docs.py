"""The programs in docs/parallel.md, and in its sister pages, do what they say."""

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

DOCS = Path(__file__).parents[3] / "docs"


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


PROGRAMS = [program for page in ("parallel.md", "limits.md", "failures.md") for program in programs(page)]
PRINTED = {
    0: (b"customer", b"order 1", 1),
    3: (b"confirmed: order 1", 0),
    4: (0, b"confirmed: order 1", 0, 0),
    5: (1, "inserted"),
    6: (7,),
    7: (0, 7),
    8: (0, 7),
    9: (1,),
    10: (b"customer", b"order 1", 1),
}
DECLARATIONS = {1, 2, 11, 12, 13}


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
        exec(compile(program, f"program {number}", "exec"), variables)  # noqa: S102 - our own text

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


def test_no_program_of_the_pages_is_left_out() -> None:
    assert set(range(len(PROGRAMS))) == PRINTED.keys() | DECLARATIONS


@pytest.mark.parametrize("number", DECLARATIONS)
def test_a_declaration_of_the_page_can_be_made(number: int) -> None:
    exec(compile(PROGRAMS[number], f"program {number}", "exec"), {})  # noqa: S102 - our own text
