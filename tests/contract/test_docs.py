"""The README's programs do what it says."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Cluster
from tests.exported_spans import Exported

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


def test_the_program_of_the_page_about_traces_bills_an_order_in_a_span(kafka_cluster: Cluster) -> None:
    page = (README.parent / "docs" / "tracing.md").read_text()
    program, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    topic = f"{kafka_cluster.topic(1)}-0"
    for name, value in (("localhost:9092", kafka_cluster.bootstrap_servers), ("orders", topic), ("billing", topic)):
        program = program.replace(f'"{name}"', repr(value))
    # The process has one global provider, which a test must not set.
    exported = Exported()
    program = program.replace("trace.set_tracer_provider(TracerProvider())", "")
    program = re.sub(r"trace.get_tracer_provider\(\).*\n", "", program).replace("Tracing()", "tracing")
    printed: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {"tracing": exported.tracing()}

    def note(*values: Any) -> None:
        printed.append(values)
        names["consumer"].stop()

    names["print"] = note
    exec(compile(program, "tracing.md", "exec"), names)  # noqa: S102 - our own text
    [(said, span)] = printed
    assert said == "billed in the span"
    assert span != 0
    assert exported.spans(f"send {topic}")
