"""The programs of docs/coming-from do what their pages say."""

import re
from pathlib import Path
from typing import Any

import pytest

from headway import ParallelConsumer
from headway.workers.worker import worker_of
from tests.contract.conftest import Cluster

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README")
WITH_CONSUMERS = ["java-priority-client", "pulsar", "rabbitmq", "share-groups", "sqs"]
WITH_WORKERS = ["celery", "java-parallel-consumer"]


def program(page: str, cluster: Cluster, topic: str) -> str:
    [found] = re.findall(r"```python\n(.*?)```", (FOLDER / f"{page}.md").read_text(), re.DOTALL)
    text = str(found).replace("localhost:9092", cluster.bootstrap_servers).replace('"notify"', repr(topic))
    return text.replace('"emails"', repr(topic)).replace('"emails-dead"', repr(f"{topic}-dead"))


def run(text: str) -> tuple[dict[str, Any], list[str]]:
    """Run a program, whose consumer stops at what it prints first; return its names, and the lines that it printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed: list[str] = []

    def note(*values: Any) -> None:
        printed.append(" ".join(value.decode() if isinstance(value, bytes) else str(value) for value in values))
        if isinstance(consumer := names.get("consumer"), ParallelConsumer):
            consumer.stop()

    names["print"] = note
    exec(compile(text, "page.md", "exec"), names)  # noqa: S102 - our own text
    return names, printed


@pytest.mark.parametrize("page", WITH_CONSUMERS)
def test_a_program_receives_what_was_sent(page: str, kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    text = program(page, kafka_cluster, topic)
    if "producer" not in text:
        with kafka_cluster.producer() as producer:
            producer.send(topic, "hello", "zoe", level=2)
    _, printed = run(text)
    assert any("hello" in line or "reset your password" in line for line in printed)


@pytest.mark.quick("java-parallel-consumer")
@pytest.mark.parametrize("page", WITH_WORKERS)
def test_a_declared_worker_handles_what_was_sent(page: str, kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    kafka_cluster.create_topics([f"{topic}-dead"])
    names, printed = run(program(page, kafka_cluster, topic))
    if "producer" not in names:
        with kafka_cluster.producer() as producer:
            producer.send(topic, "hello", "zoe", level=2)
    declared = worker_of(names["deliver"])
    assert declared is not None
    with declared.consumer(kafka_cluster.config({})) as consumer:
        names["consumer"] = consumer
        declared.run(consumer)
    assert "hello" in printed[0]


def test_every_page_is_tried() -> None:
    assert {*WITH_CONSUMERS, *WITH_WORKERS} == set(PAGES)
