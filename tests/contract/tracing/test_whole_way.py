"""One record's traces from its producer through delay, failures, a dead letter and an output, on a real broker."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.trace import SpanKind, StatusCode

from headway import ParallelConsumer, Producer, Retries, cli, fixed_backoff
from headway.broker import LocalBroker
from tests.broker.delay_cluster import DelayCluster, wait_until
from tests.contract.tracing import traced_handlers as handlers
from tests.exported_spans import Exported, attributes, ids

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    cluster = DelayCluster(headway_broker.bootstrap_servers, partitions=1)
    for topic in (f"{cluster.target}-dead", f"{cluster.target}-out"):
        cluster.create_target(topic, partitions=1)
    return cluster


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(handlers.NOTES, str(path))
    return str(path)


@contextmanager
def running(consumer: ParallelConsumer, handler: Callable[..., Any]) -> Iterator[None]:
    """Run a consumer in a thread, and stop it at the end."""
    thread = threading.Thread(target=consumer.run_and_produce, args=(handler,))
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(60)
    assert consumer.failure is None


def consumer_of(cluster: DelayCluster, exported: Exported, **options: Any) -> ParallelConsumer:
    config = {**cluster.config, "scheduler.name": cluster.name, "group.id": cluster.target}
    consumer = ParallelConsumer(
        {**config, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100},
        tracing=exported.tracing(),
        **options,
    )
    consumer.subscribe(cluster.target)
    return consumer


def send_later(cluster: DelayCluster, exported: Exported, delay: float) -> None:
    config = {**cluster.config, "scheduler.name": cluster.name}
    checkout = exported.tracer.start_as_current_span("checkout")
    with Producer(config, tracing=exported.tracing()) as producer, checkout:
        producer.send(cluster.target, b"pay", b"key", due=delay).result(30)


RETRIES = Retries(max_attempts=3, backoff=fixed_backoff(0.01))
EXECUTORS = [
    pytest.param(handlers.fail_twice_then_produce, {}, id="threads"),
    pytest.param(handlers.fail_twice_then_produce_async, {}, id="async"),
    pytest.param(handlers.fail_twice_then_produce, {"executor": "process", "processes": 1}, id="processes"),
    pytest.param(handlers.fail_twice_then_produce, {"commit_mode": "transactional"}, id="transactional"),
]


@pytest.mark.quick("threads")
@pytest.mark.parametrize(("handler", "options"), EXECUTORS)
def test_a_record_is_traced_from_its_producer_to_the_output_of_its_last_handler(
    cluster: DelayCluster,
    notes: str,
    monkeypatch: pytest.MonkeyPatch,
    handler: Callable[..., Any],
    options: dict[str, Any],
) -> None:
    exported, topic = Exported(), cluster.target
    monkeypatch.setenv(handlers.OUTPUTS, f"{topic}-out")
    consumer = consumer_of(
        cluster,
        exported,
        retries=Retries(max_attempts=3, backoff=fixed_backoff(0.01)),
        dead_letter_topic=f"{topic}-dead",
        **options,
    )
    with cluster.relay(tracing=exported.tracing()), consumer, running(consumer, handler):
        send_later(cluster, exported, 0.3)
        cluster.wait_for(1, f"{topic}-dead")
        arguments = ["dead", "send-again", f"{topic}-dead", "--all", "--yes"]
        servers = ["--bootstrap-servers", cluster.config["bootstrap.servers"]]
        assert CliRunner().invoke(cli.headway, [*arguments, *servers]).exit_code == 0
        [output] = cluster.wait_for(1, f"{topic}-out")
    sent = f"send {topic}"
    expected: list[tuple[str, str | None, list[str]]] = [
        ("checkout", None, []),
        (sent, "checkout", []),
        ("waited in a delay topic", sent, []),
        ("queued at level 0", sent, []),
        (f"process {topic}", None, [sent]),
        ("retry after TimeoutError", sent, []),
        (f"process {topic}", None, [sent]),
        ("send dead letter", f"process {topic}", [sent]),
        ("queued at level 0", sent, []),
        (f"process {topic}", None, [sent]),
        (f"send {topic}-out", f"process {topic}", []),
    ]
    assert exported.tree() == sorted(expected, key=str)
    calls = sorted(exported.spans(f"process {topic}"), key=lambda span: span.start_time or 0)
    assert list(handlers.notes_in(notes)) == [
        (text, *ids(span)) for text, span in zip(("attempt-1", "attempt-2", "attempt-1"), calls, strict=True)
    ]
    assert [attributes(span).get("error.type") for span in calls] == ["TimeoutError", "FatalError", None]
    statuses = [span.status.status_code for span in calls]
    assert statuses == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    origins = {attributes(span)["headway.record.origin"] for span in calls}
    assert len(origins) == 1, "the record that was sent again is the same record"
    carried = dict(output.headers())["traceparent"].decode()
    assert carried.split("-")[1:3] == list(ids(exported.one(f"send {topic}-out")))
    commits = exported.spans("commit")
    assert commits
    assert attributes(commits[0])["messaging.consumer.group.name"] == topic


def test_spans_have_the_kinds_attributes_and_times_that_the_conventions_ask_for(
    cluster: DelayCluster, notes: str
) -> None:
    exported, topic = Exported(), cluster.target
    consumer = consumer_of(cluster, exported)
    with cluster.relay(tracing=exported.tracing()), consumer, running(consumer, handlers.later_once):
        send_later(cluster, exported, 0.3)
        wait_until(lambda: len(exported.spans(f"process {topic}")) == 2)
    sent, commit = exported.one(f"send {topic}"), exported.spans("commit")[0]
    first, second = exported.spans(f"process {topic}")
    assert [span.kind for span in (sent, first, commit)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert attributes(first) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": topic,
        "messaging.destination.partition.id": str(attributes(first)["messaging.destination.partition.id"]),
        "messaging.kafka.offset": 0,
        "headway.level": 0,
        "headway.attempt": 1,
        "headway.record.origin": f"{topic}-{attributes(first)['messaging.destination.partition.id']}-0",
        "error.type": "ConnectionError",
    }
    assert first.status.description == "lost"
    waits = sorted(exported.spans("waited in a delay topic"), key=lambda span: span.start_time or 0)
    assert [exported.parent(span) for span in waits] == [f"send {topic}"] * 2
    assert all(duration(span) >= least for span, least in zip(waits, (0.3, 0.2), strict=True))
    assert attributes(waits[1])["headway.record.origin"] == attributes(first)["headway.record.origin"]
    retried = exported.one("retry after ConnectionError")
    assert attributes(retried)["headway.wait"].startswith("retry 1 after ConnectionError, ")
    assert duration(retried) >= 0.2
    assert abs((retried.end_time or 0) - (second.start_time or 0)) < 1_000_000
    assert len({span.context.trace_id for span in (sent, *waits, retried) if span.context}) == 1


def duration(span: Any) -> float:
    return float(span.end_time - span.start_time) / 1e9


def test_keys_and_values_are_in_no_span_unless_keys_are_asked_for(cluster: DelayCluster, notes: str) -> None:
    for wanted in (False, True):
        exported = Exported()
        with Producer(cluster.config, tracing=exported.tracing(keys=wanted)) as producer:
            producer.send(cluster.target, b"secret value", b"secret key").result(30)
        text = exported.one(f"send {cluster.target}").to_json()
        assert "secret value" not in text
        assert ("secret key" in text) == wanted
