"""The programs of the first pages do what these pages say."""

import contextlib
import re
import tomllib
from pathlib import Path
from typing import Any
from uuid import uuid4

from headway import ParallelConsumer
from tests.contract.conftest import Cluster
from tests.exported_spans import Exported

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PRIORITY = ROOT / "docs" / "priority.md"


class SeenEnough(BaseException):
    """Ends a program that would go on for ever."""


def programs(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run(program: str, cluster: Cluster, topic: str, prints: int) -> list[tuple[Any, ...]]:
    printed: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {}

    def note(*values: Any) -> None:
        printed.append(values)
        if len(printed) == prints:
            # A handler runs in a thread, where an exception would only fail its record.
            if isinstance(consumer := names.get("consumer"), ParallelConsumer):
                consumer.stop()
            else:
                raise SeenEnough

    names["print"] = note
    program = program.replace("localhost:9092", cluster.bootstrap_servers).replace('"orders"', repr(topic))
    program = program.replace('"shipping"', repr(topic))
    with contextlib.suppress(SeenEnough):
        exec(compile(program, "page.md", "exec"), names)  # noqa: S102 - our own text
    assert len(printed) >= prints
    return printed


def test_the_first_program_of_the_readme_needs_only_a_broker(kafka_cluster: Cluster) -> None:
    [program] = programs(README)
    assert len(program.splitlines()) <= 15
    lines = run(program, kafka_cluster, f"readme-{uuid4().hex[:8]}", prints=101)
    assert (2, b"customer 7", b"ship at once") in lines
    assert len(set(lines)) == 101


def test_the_programs_about_priority_send_and_receive_by_priority(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    send, receive = programs(PRIORITY)
    [(said, metadata)] = run(send, kafka_cluster, topic, prints=1)
    assert said == "delivered at"
    assert (metadata.topic, metadata.level) == (topic, 2)
    records = run(receive, kafka_cluster, topic, prints=1001)
    assert [value for level, _, value in records if level == 2] == [b"ship at once"]
    assert len({value for _, _, value in records}) == 1001


def test_the_readme_can_be_read_in_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_a_page_says_what_each_extra_is_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []


def test_the_program_of_the_page_about_traces_bills_an_order_in_a_span(kafka_cluster: Cluster) -> None:
    program, *_ = programs(ROOT / "docs" / "tracing.md")
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
