"""Each handler has its own current span, in every executor, and no failure of the tracing fails a record."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context, attach
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode, get_current_span, set_span_in_context

from headway import AsyncProducer, Batches, ConsumerRecord, ParallelConsumer, PriorityConsumer, Producer, ProducerRecord
from headway.tracing import Tracing
from tests.contract.conftest import Cluster
from tests.contract.tracing import traced_handlers as handlers
from tests.exported_spans import Exported, attributes, ids

PROCESSES: dict[str, Any] = {"executor": "process", "processes": 2}
EXECUTORS = [
    pytest.param(handlers.by_value, {}, id="threads"),
    pytest.param(handlers.by_value_async, {}, id="async"),
    pytest.param(handlers.by_value, PROCESSES, id="processes"),
]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(handlers.NOTES, str(path))
    return str(path)


def send(cluster: Cluster, topic: str, values: Sequence[str], exported: Exported | None = None) -> None:
    tracing = exported.tracing() if exported else None
    with Producer(cluster.config({}), tracing=tracing) as producer:
        for value in values:
            producer.send(topic, value.encode(), value.encode())


def consumer_of(cluster: Cluster, topic: str, tracing: Tracing, **options: Any) -> ParallelConsumer:
    config = {"group.id": topic, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
    consumer = ParallelConsumer(cluster.config(config), tracing=tracing, **options)
    consumer.subscribe(topic)
    return consumer


def run_until(consumer: ParallelConsumer, is_enough: Callable[[], bool], handler: Any, **options: Any) -> None:
    """Run until that is so."""
    deadline = time.monotonic() + 60

    def watch() -> None:
        while not is_enough() and time.monotonic() < deadline:
            time.sleep(0.01)
        consumer.stop()

    watching = threading.Thread(target=watch)
    watching.start()
    with consumer:
        consumer.run(handler, **options)
    watching.join()
    assert time.monotonic() < deadline


def plain_topic(cluster: Cluster) -> str:
    return f"{cluster.topic(1)}-0"


@pytest.mark.parametrize(("handler", "options"), EXECUTORS)
def test_each_call_has_the_span_of_its_own_record_however_many_run_at_a_time(
    mock_cluster: Cluster, notes: str, handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    exported, topic, values = Exported(), plain_topic(mock_cluster), [str(i) for i in range(60)]
    send(mock_cluster, topic, values, exported)
    consumer = consumer_of(mock_cluster, topic, exported.tracing(), max_concurrency=20, **options)
    run_until(consumer, lambda: consumer.metrics().done == len(values), handler)
    spans = {ids(span): span for span in exported.spans(f"process {topic}")}
    sent = {span.context.span_id: span for span in exported.spans(f"send {topic}") if span.context}
    assert len(spans) == len(values)
    noted = {(trace, span): text for text, trace, span in handlers.notes_in(notes)}
    assert noted.keys() == spans.keys()
    for id_, span in spans.items():
        [link] = span.links
        place = ("messaging.destination.partition.id", "messaging.kafka.offset")
        assert [attributes(span)[name] for name in place] == [
            attributes(sent[link.context.span_id])[name] for name in place
        ]
        assert noted[id_] in values
    assert len(set(noted.values())) == len(values)


def test_a_handler_that_leaves_its_own_span_current_does_not_hand_it_on(mock_cluster: Cluster, notes: str) -> None:
    exported, topic, seen = Exported(), plain_topic(mock_cluster), list[tuple[int, int]]()
    send(mock_cluster, topic, ["a", "b", "c"])
    consumer = consumer_of(mock_cluster, topic, exported.tracing(), max_concurrency=1)

    def handle(record: ConsumerRecord) -> None:
        current = get_current_span().get_span_context()
        seen.append((current.trace_id, current.span_id))
        attach(set_span_in_context(exported.tracer.start_span("left behind")))

    run_until(consumer, lambda: consumer.metrics().done == 3, handle)
    spans = [span.context for span in exported.spans(f"process {topic}") if span.context]
    assert sorted(seen) == sorted((each.trace_id, each.span_id) for each in spans)
    assert len({trace for trace, _ in seen}) == 3


@pytest.mark.parametrize(("handler", "options"), EXECUTORS)
def test_a_call_over_its_time_limit_has_a_failed_span(
    mock_cluster: Cluster, notes: str, handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    exported, topic = Exported(), plain_topic(mock_cluster)
    send(mock_cluster, topic, ["sleep"] if options else ["wait"])
    handler = handler if options else (waits if handler is handlers.by_value else waits_async)
    consumer = consumer_of(mock_cluster, topic, exported.tracing(), time_limit=0.3, **options)
    run_until(consumer, lambda: bool(exported.spans(f"process {topic}")), handler)
    span = exported.spans(f"process {topic}")[0]
    assert attributes(span)["error.type"] == "TimeLimitError"
    assert span.status.status_code is StatusCode.ERROR


def waits(record: ConsumerRecord) -> None:
    """Wait in steps, so that the thread can be interrupted."""
    for _ in range(3000):
        time.sleep(0.01)


async def waits_async(record: ConsumerRecord) -> None:
    """Wait on the loop."""
    await asyncio.sleep(30)


def test_a_process_that_dies_leaves_a_failed_span_of_its_record_and_complete_spans_of_the_others(
    mock_cluster: Cluster, notes: str
) -> None:
    exported, topic = Exported(), plain_topic(mock_cluster)
    send(mock_cluster, topic, ["a", "die", "b", "c"])
    consumer = consumer_of(mock_cluster, topic, exported.tracing(), **PROCESSES)

    def errors() -> list[str | None]:
        spans = [attributes(span) for span in exported.spans(f"process {topic}")]
        return [span.get("error.type") for span in spans if "headway.abandoned" not in span]

    run_until(consumer, lambda: errors().count(None) >= 3 and "ProcessDiedError" in errors(), handlers.by_value)
    assert set(errors()) == {None, "ProcessDiedError"}
    assert errors().count(None) == 3


def test_a_batch_has_one_span_with_a_link_to_each_of_its_records(mock_cluster: Cluster, notes: str) -> None:
    exported, topic, values = Exported(), plain_topic(mock_cluster), ["a", "b", "c"]
    send(mock_cluster, topic, values, exported)
    consumer = consumer_of(mock_cluster, topic, exported.tracing(parent=True), ordering="unordered")
    batches = Batches(10, min_size=3, linger=5.0)
    run_until(consumer, lambda: consumer.metrics().done == 3, handlers.batch, batches=batches)
    span = exported.one(f"process {topic}")
    assert exported.links(span) == [f"send {topic}"] * 3
    assert span.parent is None, "a batch has several parents, so it is linked even with parent=True"
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert len(exported.spans("queued at level 0")) == 3


def test_by_choice_the_span_that_has_sent_a_record_is_the_parent_of_its_call(mock_cluster: Cluster, notes: str) -> None:
    exported, topic = Exported(), plain_topic(mock_cluster)
    send(mock_cluster, topic, ["a"], exported)
    consumer = consumer_of(mock_cluster, topic, exported.tracing(parent=True))
    run_until(consumer, lambda: consumer.metrics().done == 1, handlers.by_value)
    span = exported.one(f"process {topic}")
    assert (exported.parent(span), span.links) == (f"send {topic}", ())


def test_records_that_nobody_traced_begin_traces_of_their_own(mock_cluster: Cluster, notes: str) -> None:
    exported, topic = Exported(), plain_topic(mock_cluster)
    send(mock_cluster, topic, ["a", "b"])
    consumer = consumer_of(mock_cluster, topic, exported.tracing(parent=True))
    run_until(consumer, lambda: consumer.metrics().done == 2, handlers.by_value)
    spans = exported.spans(f"process {topic}")
    assert len({span.context.trace_id for span in spans if span.context}) == 2
    assert [exported.parent(span) for span in exported.spans("queued at level 0")] == [f"process {topic}"] * 2


@pytest.mark.parametrize(
    "header",
    [b"", b"\xff\xfe", b"00-1-2-3", b"x" * 100_000, b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", None],
    ids=["empty", "not text", "too short", "huge", "zeros", "null"],
)
def test_a_forged_context_counts_as_none(mock_cluster: Cluster, notes: str, header: bytes | None) -> None:
    exported, topic = Exported(), plain_topic(mock_cluster)
    with Producer(mock_cluster.config({})) as producer:
        producer.send(topic, b"a", headers=[("traceparent", header), ("tracestate", b"a=b"), ("baggage", header)])
    consumer = consumer_of(mock_cluster, topic, exported.tracing(parent=True))
    run_until(consumer, lambda: consumer.metrics().done == 1, handlers.by_value)
    span = exported.one(f"process {topic}")
    assert (span.parent, span.links) == (None, ())


class Broken(SpanProcessor):
    """A processor that raises wherever it is called."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise RuntimeError("no space left")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no space left")


class BrokenExporter(SpanExporter):
    """An exporter that raises."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("the collector is down")


@pytest.mark.parametrize("processor", [Broken(), SimpleSpanProcessor(BrokenExporter())], ids=["processor", "exporter"])
@pytest.mark.parametrize(("handler", "options"), EXECUTORS)
def test_a_broken_exporter_fails_no_record(
    mock_cluster: Cluster,
    notes: str,
    handler: Callable[..., Any],
    options: dict[str, Any],
    processor: SpanProcessor,
) -> None:
    exported, topic, values = Exported(processor), plain_topic(mock_cluster), ["a", "b", "c"]
    with Producer(mock_cluster.config({}), tracing=exported.tracing()) as producer:
        futures = [producer.send(topic, value.encode()) for value in values]
        assert [future.result(10).topic for future in futures] == [topic] * 3
    consumer = consumer_of(mock_cluster, topic, exported.tracing(), **options)
    run_until(consumer, lambda: consumer.metrics().done == 3, handler)
    assert {text for text, _, _ in handlers.notes_in(notes)} == set(values)
    assert consumer.metrics().failed == 0


def test_without_an_sdk_nothing_happens(mock_cluster: Cluster, notes: str) -> None:
    topic = plain_topic(mock_cluster)
    with Producer(mock_cluster.config({}), tracing=Tracing()) as producer:
        producer.send(topic, b"a").result(10)
    consumer = consumer_of(mock_cluster, topic, Tracing())
    run_until(consumer, lambda: consumer.metrics().done == 1, handlers.by_value)
    assert list(handlers.notes_in(notes)) == [("a", "0" * 32, "0" * 16)]


def test_a_handler_that_still_runs_at_the_end_of_the_run_has_a_span_that_says_so(
    mock_cluster: Cluster, notes: str
) -> None:
    exported, topic, began = Exported(), plain_topic(mock_cluster), threading.Event()
    send(mock_cluster, topic, ["a"])
    consumer = consumer_of(mock_cluster, topic, exported.tracing())
    go_on = threading.Event()

    def hang(record: ConsumerRecord) -> None:
        began.set()
        go_on.wait(30)

    thread = threading.Thread(target=consumer.run, args=(hang,))
    thread.start()
    assert began.wait(30)
    consumer.close(timeout=0.1)
    thread.join(30)
    go_on.set()
    assert attributes(exported.one(f"process {topic}"))["headway.abandoned"] is True


# Producers


def test_a_failed_send_has_a_failed_span(mock_cluster: Cluster) -> None:
    exported = Exported()
    with Producer(mock_cluster.config({}), tracing=exported.tracing()) as producer:
        future = producer.send("orders", b"x" * 2_000_000)
        assert future.exception(10) is not None
    assert attributes(exported.one("send orders"))["error.type"] == "DeliveryError"


def test_a_record_is_traced_once_however_it_is_sent(mock_cluster: Cluster) -> None:
    exported, topic = Exported(), mock_cluster.topic(1)
    with Producer(mock_cluster.config({"levels": 1}), tracing=exported.tracing()) as producer:
        producer.send(ProducerRecord(topic, b"a", headers=[("traceparent", b"old")], level=0)).result(10)
        producer.send(topic, b"a", headers=[("shop", b"eu")], level=0).result(10)
        assert producer.try_send(topic, b"a") is not None
    spans = exported.spans(f"send {topic}-0")
    assert len(spans) == 3
    consumer = PriorityConsumer(mock_cluster.config({"levels": 1, "group.id": topic, "auto.offset.reset": "earliest"}))
    carried: list[tuple[str, ...]] = []
    with consumer:
        consumer.subscribe(topic)
        while len(carried) < 3:
            for record in consumer.poll(1.0):
                [value] = [value for name, value in record.headers if name == "traceparent"]
                assert isinstance(value, bytes)
                carried.append(tuple(value.decode().split("-")[1:3]))
                with exported.tracing().process(record, group=topic):
                    assert get_current_span().get_span_context().is_valid
    assert sorted(carried) == sorted(ids(span) for span in spans)
    assert len(exported.spans(f"process {topic}-0")) == 3


async def test_an_async_producer_traces_in_the_context_of_each_task(mock_cluster: Cluster) -> None:
    exported, topic = Exported(), plain_topic(mock_cluster)
    async with AsyncProducer(mock_cluster.config({}), tracing=exported.tracing()) as producer:

        async def request(number: int) -> None:
            with exported.tracer.start_as_current_span(f"request {number}"):
                await producer.send(topic, b"a")

        await asyncio.gather(*(request(number) for number in range(5)))
    parents = sorted(exported.parent(span) or "" for span in exported.spans(f"send {topic}"))
    assert parents == [f"request {number}" for number in range(5)]
