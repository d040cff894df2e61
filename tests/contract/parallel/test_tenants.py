"""Tenants of the parallel consumer, on a real Apache Kafka: who goes next, and what a user's function may do."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Context, Ordering, ParallelConsumer, worker
from headway.workers.worker import worker_of
from tests.contract.conftest import Cluster
from tests.contract.parallel import process_handlers as handlers  # by a name that processes can import too
from tests.contract.parallel.members import (
    OFTEN,
    Gate,
    Member,
    committed,
    consumer,
    handled_until_all_is_committed,
    send,
    topic_of,
    wait_for,
)

pytestmark = pytest.mark.kafka

FLOOD = 2_500  # more than are read ahead without tenants
BY_HEADER: dict[str, Any] = {"ordering": Ordering.UNORDERED, "tenant": "header:tenant", "max_concurrency": 1}


def send_for(cluster: Cluster, topic: str, tenants: Sequence[str], value: str = "v") -> None:
    """Store a record of each of these tenants, with the tenant in a header."""
    producer = cluster.plain_producer()
    for name in tenants:
        producer.produce(topic, value, headers={"tenant": name}, partition=0)
    assert producer.flush(30) == 0


def tenant_of(record: ConsumerRecord) -> str:
    value = record.headers[0][1]
    assert isinstance(value, bytes)
    return value.decode()


@pytest.mark.parametrize("executor", ["thread", "async", "batches"])
def test_a_quiet_tenants_record_goes_before_a_flood_that_came_first(kafka_cluster: Cluster, executor: str) -> None:
    topic = topic_of(kafka_cluster, 1)
    send_for(kafka_cluster, topic, ["flood"] * FLOOD + ["quiet"])
    started: list[str] = []
    opened, gate = threading.Event(), Gate()

    def handle(record: ConsumerRecord) -> None:
        started.append(tenant_of(record))
        opened.wait(60)

    async def handle_async(record: ConsumerRecord) -> None:
        started.append(tenant_of(record))
        await gate.wait()

    def handle_batch(records: Sequence[ConsumerRecord]) -> None:
        started.extend(map(tenant_of, records))
        opened.wait(60)

    class InBatches(Member):
        def _run(self) -> None:
            self.consumer.run(handle_batch, batches=Batches(10))

    parallel = consumer(kafka_cluster, topic, BY_HEADER)
    kind = InBatches if executor == "batches" else Member
    handler: Any = handle_async if executor == "async" else handle
    member = kind(parallel, handler)
    try:
        wait_for(lambda: started and parallel.metrics().remaining == FLOOD + 1)
        first = len(started)
        opened.set()
        gate.open()
        wait_for(lambda: "quiet" in started)
        assert started.index("quiet") <= first + 1
    finally:
        opened.set()
        gate.open()
        member.stop()


def test_a_tenant_is_charged_what_its_records_took_in_their_process(
    kafka_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(handlers.NOTES, str(tmp_path / "notes"))
    topic = topic_of(kafka_cluster, 1)
    send_for(kafka_cluster, topic, ["slow"] * 10, "sleep 0.1")
    send_for(kafka_cluster, topic, ["quick"] * 10, "sleep 0")
    options = BY_HEADER | {"executor": "process", "processes": 1, "max_concurrency": 20}
    parallel = consumer(kafka_cluster, topic, options, **OFTEN)
    member = Member(parallel, handlers.act)
    wait_for(lambda: parallel.metrics().done == 20)
    busiest = parallel.metrics().busiest_tenants
    member.stop()
    assert list(busiest) == ["slow", "quick"]
    assert 1.0 <= busiest["slow"] < 2.0
    assert busiest["quick"] < 0.3  # though each has waited behind slow ones


@pytest.mark.parametrize(
    ("tenant", "names"),
    [
        ("key", {"a/1", "a/2", "b/1", "plain", ""}),
        ("key:/", {"a", "b", "plain", ""}),
        (lambda record: record.value.decode()[0], {"v", "w"}),
        (lambda record: None, {""}),
    ],
)
def test_the_metrics_name_the_tenants(
    kafka_cluster: Cluster, tenant: str | Callable[[ConsumerRecord], str], names: set[str]
) -> None:
    topic = topic_of(kafka_cluster, 2)
    send(kafka_cluster, topic, [("a/1", "v"), ("a/2", "v"), ("b/1", "w"), ("plain", "w"), (None, "v")])
    parallel = consumer(kafka_cluster, topic, {"tenant": tenant})
    member = Member(parallel, lambda record, context: None)
    wait_for(lambda: parallel.metrics().done == 5)
    busiest = parallel.metrics().busiest_tenants
    member.stop()
    assert busiest.keys() == names
    assert sorted(busiest.values(), reverse=True) == list(busiest.values())


def test_the_metrics_name_no_more_than_five_tenants(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 2)
    send(kafka_cluster, topic, [(f"key-{number}", "v") for number in range(50)])
    parallel = consumer(kafka_cluster, topic, {"tenant": "key"})
    member = Member(parallel, lambda record, context: None)
    wait_for(lambda: parallel.metrics().done == 50)
    assert len(parallel.metrics().busiest_tenants) == 5
    member.stop()


def exits(record: ConsumerRecord) -> str:
    raise SystemExit


def returns_a_number(record: ConsumerRecord) -> Any:
    return 7


@pytest.mark.parametrize("tenant", [exits, returns_a_number, lambda record: record.key["customer"]])
def test_a_record_whose_tenant_is_not_known_is_handled_like_any_other(
    kafka_cluster: Cluster, tenant: Callable[[ConsumerRecord], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [(f"key-{number}", "v") for number in range(100)])
    with caplog.at_level(logging.WARNING, "headway"):
        handled = handled_until_all_is_committed(kafka_cluster, topic, {"tenant": tenant})
    assert sorted(handled) == [(0, offset) for offset in range(100)]
    warnings = [record.getMessage() for record in caplog.records if "tenant" in record.getMessage()]
    assert "(unknown)" in warnings[0]
    assert len(warnings) == 11
    assert warnings[-1].startswith("90 more failures of records of")


def test_the_function_of_the_tenant_may_ask_the_consumer_for_its_metrics(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("a", "v")] * 10)
    consumers: list[ParallelConsumer] = []
    options = {"tenant": lambda record: str(consumers[0].metrics().done)}
    consumers.append(consumer(kafka_cluster, topic, options, **OFTEN))
    member = Member(consumers[0], lambda record, context: None)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (10, b"")})
    member.stop()


@pytest.mark.slow
def test_order_by_key_stays_with_tenants(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [(f"key-{number % 5}", str(number)) for number in range(500)])
    started: dict[str, list[int]] = {}

    def handle(record: ConsumerRecord, context: Context) -> None:
        started.setdefault(record.key.decode(), []).append(int(record.value))
        if context.attempt == 1 and int(record.value) % 50 == 0:
            started[record.key.decode()].pop()
            raise OSError("not now")

    options = {"tenant": lambda record: record.value.decode()[-1], "tenant_weights": {"0": 0.1}}
    parallel = consumer(kafka_cluster, topic, options)
    member = Member(parallel, handle)
    wait_for(lambda: parallel.metrics().done == 500)
    member.stop()
    assert all(numbers == sorted(numbers) for numbers in started.values())


def test_a_workers_tenants_are_those_of_its_consumer(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("a/1", "v"), ("b/1", "v")])

    @worker(topic, group=topic, tenant="key:/", tenant_weights={"a": 2.0})
    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)

    declared = worker_of(handle)
    assert declared
    parallel = declared.consumer(kafka_cluster.config({}))
    member = Member(parallel, handle)  # type: ignore[arg-type]
    wait_for(lambda: parallel.metrics().done == 2)
    assert parallel.metrics().busiest_tenants.keys() == {"a", "b"}
    member.stop()
