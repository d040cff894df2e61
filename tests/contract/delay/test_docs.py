"""The programs in docs/delay.md do what it says."""

import re
from pathlib import Path
from typing import Any

from headway import Relay
from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.delay.topics import create_topics
from tests.broker.delay_cluster import LADDER

PAGE = (Path(__file__).parents[3] / "docs" / "delay.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_programs_of_the_page_print_what_it_says(headway_broker: LocalBroker) -> None:
    config = {"bootstrap.servers": headway_broker.bootstrap_servers, "session.timeout.ms": 1500}
    create_topics({"bootstrap.servers": headway_broker.bootstrap_servers}, ladder=LADDER)
    printed: list[tuple[Any, ...]] = []
    with Relay(config).running():
        for program in PROGRAMS:
            text = program.replace("localhost:9092", headway_broker.bootstrap_servers)
            exec(compile(text, "delay.md", "exec"), {"print": lambda *values: printed.append(values)})  # noqa: S102
    assert printed[0][1] == "is stored"
    assert printed[1:] == [("rescheduled",), (True,), ("asked",), (True,), ("every half second",)]


def test_the_table_of_writes_is_right() -> None:
    [row] = re.findall(r"\| writes, the delivery included \|(.*)\|", PAGE)
    delays = [1, 60, 3600, 86_400, 31_536_000]
    assert [int(cell) for cell in row.split("|")] == [Ladder.exponential().writes(delay * 1000) for delay in delays]
