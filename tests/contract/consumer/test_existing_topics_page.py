"""The programs in docs/existing-topics.md do what it says: the group goes on at its commits."""

import re
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import ParallelConsumer
from headway.kafka.reading.group_inspector import GroupInspector
from headway.workers.worker import worker_of
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[3] / "docs" / "existing-topics.md"
BY_POLLS, IN_PARALLEL, DECLARED = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


class SeenEnough(BaseException):
    """Ends a program that would go on for ever."""


def group_with_commits(cluster: Cluster) -> str:
    """A group with commits behind the first of two records of the topics GROUP.emails and GROUP.reports."""
    group = f"tasks-{uuid.uuid4().hex[:8]}"
    topics = [f"{group}.emails", f"{group}.reports"]
    cluster.create_topics(topics)
    producer = cluster.plain_producer()
    for topic in topics:
        for value in (b"handled before", b"new"):
            producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    with GroupInspector(cluster.config({}), group) as inspector:
        inspector.commit({(topic, 0): (1, b"") for topic in topics})
    return group


def run(program: str, cluster: Cluster, group: str, printed: list[tuple[Any, ...]], *, raises: bool) -> dict[str, Any]:
    def note(*values: Any) -> None:
        printed.append(values)
        if raises and len(printed) == 2:
            raise SeenEnough

    program = program.replace("localhost:9092", cluster.bootstrap_servers).replace('"tasks"', repr(group))
    for topic in ("emails", "reports"):
        program = program.replace(f'"{topic}"', repr(f"{group}.{topic}"))
    variables: dict[str, Any] = {"print": note}
    exec(compile(program, PAGE.name, "exec"), variables)  # noqa: S102 - our own text
    return variables


def news(group: str) -> set[tuple[Any, ...]]:
    return {(f"{group}.emails", 2, b"new"), (f"{group}.reports", 0, b"new")}


def test_the_first_program_goes_on_where_the_group_was(kafka_cluster: Cluster) -> None:
    group, printed = group_with_commits(kafka_cluster), list[tuple[Any, ...]]()
    with pytest.raises(SeenEnough):
        run(BY_POLLS, kafka_cluster, group, printed, raises=True)
    assert set(printed) == news(group)


def test_the_second_program_goes_on_there_in_parallel(kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    group, printed = group_with_commits(kafka_cluster), list[tuple[Any, ...]]()
    made: list[ParallelConsumer] = []

    class Noted(ParallelConsumer):
        def __enter__(self) -> "Noted":
            made.append(self)
            return self

    def stop() -> None:
        while len(printed) < 2:
            threading.Event().wait(0.02)
        made[-1].stop()

    monkeypatch.setattr(headway, "ParallelConsumer", Noted)
    stopping = threading.Thread(target=stop)
    stopping.start()
    run(IN_PARALLEL, kafka_cluster, group, printed, raises=False)
    stopping.join()
    assert set(printed) == news(group)
    with GroupInspector(kafka_cluster.config({}), group) as inspector:
        assert inspector.committed([(f"{group}.emails", 0)]) == {(f"{group}.emails", 0): (2, b"")}


def test_the_worker_joins_the_one_group(kafka_cluster: Cluster) -> None:
    declared = worker_of(run(DECLARED, kafka_cluster, "ours", [], raises=False)["handle"])
    assert declared is not None
    assert declared.groups == ["ours"]
