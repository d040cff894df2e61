"""Whatever field fills a record, each budget of memory counts it. On librdkafka's mock."""

import contextlib
import threading
from typing import Any
from unittest.mock import create_autospec

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context, ParallelConsumer, Producer, ProducerRecord
from headway.delay.records import fetched_from
from headway.errors import BufferFullError
from headway.execution.dispatch import Dispatch
from headway.kafka.consumer.fetch_turns import size_of_fetched
from headway.kafka.producer.headers import header_list
from headway.parallel.handler_output import HandlerOutput, size_of_output
from headway.parallel.output_stream import StoredOutput, UntakenOutputs
from headway.records.record_types import RecordMetadata
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import plain_topic, wait_for

SIZE = 60_000
FIELDS: dict[str, dict[str, Any]] = {
    "value": {"value": b"x" * SIZE},
    "value as text of more bytes than characters": {"value": "€" * (SIZE // 3)},
    "key": {"key": b"x" * SIZE},
    "key as text of more bytes than characters": {"key": "€" * (SIZE // 3)},
    "name of a header": {"headers": [("x" * SIZE, b"")]},
    "value of a header": {"headers": [("name", b"x" * SIZE)]},
    "value of a header as text": {"headers": [("name", "€" * (SIZE // 3))]},
    "number of headers": {"headers": [("h", b"x")] * (SIZE // 150)},
}
FIELD = pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)


def message_with(cluster: Cluster, fields: dict[str, Any]) -> ck.Message:
    topic = plain_topic(cluster)
    with Producer(cluster.config({})) as producer:
        producer.send(topic, partition=0, **{"value": b"", **fields})
    consumer = ck.Consumer(cluster.config({"log_level": 0, "group.id": topic}))
    try:
        consumer.assign([ck.TopicPartition(topic, 0, 0)])
        found = consumer.poll(30)
    finally:
        consumer.close()
    assert found is not None
    assert not found.error()
    return found


@FIELD
def test_a_producer_takes_no_more_than_fits_into_its_memory(fields: dict[str, Any]) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "buffer.memory": 20 * SIZE}
    taken = 0
    producer = Producer(config, on_full="raise")
    try:
        with contextlib.suppress(BufferFullError):
            while taken < 100:
                producer.send("orders", **fields)
                taken += 1
    finally:
        producer.close(timeout=0)
    assert 0 < taken <= 20


@FIELD
def test_a_parallel_consumer_fetches_no_more_than_fits_into_its_memory(
    mock_cluster: Cluster, fields: dict[str, Any]
) -> None:
    topic, count = plain_topic(mock_cluster), 300
    with Producer(mock_cluster.config({"batch.num.messages": 5})) as producer:
        for _ in range(count):
            producer.send(topic, partition=0, **{"value": b"", **fields})
    goes_on = threading.Event()

    def handle(record: ConsumerRecord, context: Context) -> None:
        goes_on.wait(60)

    wire = sum(len(name) + len(value) for name, value in fields["headers"]) if "headers" in fields else SIZE
    config = {"group.id": topic, "auto.offset.reset": "earliest", "fetch.message.max.bytes": 5 * wire}
    with ParallelConsumer(mock_cluster.config(config), max_concurrency=1, buffer_memory=20 * SIZE) as parallel:
        parallel.subscribe(topic)
        running = threading.Thread(target=parallel.run, args=(handle,))
        running.start()
        wait_for(lambda: parallel.metrics().remaining)
        seen = -1
        while seen < (seen := parallel.metrics().remaining):
            threading.Event().wait(0.5)  # it fetches more, or it does not
        goes_on.set()
        parallel.stop()
        running.join()
    assert 0 < seen <= 60


@FIELD
def test_fetched_records_and_those_of_a_relay_count_in_full(mock_cluster: Cluster, fields: dict[str, Any]) -> None:
    message = message_with(mock_cluster, fields)
    assert SIZE <= size_of_fetched([message] * 2) / 2 < 2 * SIZE
    assert SIZE <= fetched_from(message).size < 2 * SIZE


@FIELD
def test_outputs_count_in_full_twice(fields: dict[str, Any]) -> None:
    headers = header_list(fields.get("headers", ()))
    output = HandlerOutput("orders", fields.get("value"), fields.get("key"), headers=headers, job=(), returned=None)
    assert 2 * SIZE <= size_of_output(output) < 4 * SIZE


@FIELD
@pytest.mark.parametrize("side", ["input", "output"])
def test_few_stored_outputs_wait_to_be_taken_if_they_are_large(fields: dict[str, Any], side: str) -> None:
    dispatch = create_autospec(Dispatch, instance=True)
    untaken = UntakenOutputs(dispatch)
    empty = {"raw_value": None, "raw_key": None, "headers": ()}
    given = {"raw_value": fields.get("value"), "raw_key": fields.get("key"), "headers": fields.get("headers", ())}
    record = create_autospec(ConsumerRecord, instance=True, **(given if side == "input" else empty))
    output = ProducerRecord("orders", **(fields if side == "output" else {}))
    stored = StoredOutput(record, output, RecordMetadata("orders", 0, 0, 0, 0))
    added = 0
    while not dispatch.wait_for_outputs.called:
        untaken.add(stored)
        added += 1
    assert added <= 64 * 2**20 // SIZE + 1
    for _ in range(added):
        untaken.take()
    assert [call.args for call in dispatch.wait_for_outputs.call_args_list] == [(True,), (False,)]
