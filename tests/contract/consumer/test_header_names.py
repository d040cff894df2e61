"""A header whose name is not UTF-8, in every way a record is read: the others are there. On librdkafka's mock."""

import json
import threading
import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.serialization import Deserializer

from headway import ConsumerRecord, Context, ParallelConsumer, PriorityConsumer
from headway.cli.records.record_lines import record_json
from headway.core.delay.schedule import Schedule
from headway.dead_letters import PREFIX
from headway.delay.records import fetched_from
from headway.inspection.letters import Letter
from headway.kafka.reading.arrow_columns import columns_of
from headway.kafka.reading.range_reader import Range, RangeReader
from headway.records.record_types import Message, TopicPartition, headers_of
from headway.testing.outcome import dead_letter_of
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import send, wait_for
from tests.odd_headers import LATIN_1, send_with_headers

pa: Any = pytest.importorskip("pyarrow")

OTHERS = [("trace", b"1"), ("customer", b"acme"), ("empty", b"")]
PERMISSION = [(name.encode(), value) for name, value in OTHERS]
ODD = [(LATIN_1, b"x"), *PERMISSION[:1], (LATIN_1, b"y"), *PERMISSION[1:], (b"\xff", b"z")]


@pytest.fixture
def topic(mock_cluster: Cluster) -> str:
    """A topic with one level; in Kafka it has another name."""
    return mock_cluster.topic(levels=1)


def put(cluster: Cluster, topic: str, *headers: tuple[bytes, bytes], value: bytes = b"v") -> None:
    send_with_headers(cluster.bootstrap_servers, f"{topic}-0", headers, value)


def messages(cluster: Cluster, topic: str, count: int) -> list[Message]:
    """The first records of a topic, as the reader of ranges has them."""
    at = TopicPartition(topic, partition=0)
    with RangeReader(cluster.config({})) as reader:
        return [message for _, found in reader.read([Range(at, 0, count)]) for message in found]


def message(cluster: Cluster, topic: str, *headers: tuple[bytes, bytes]) -> Message:
    put(cluster, topic, *headers)
    [found] = messages(cluster, topic, 1)
    return found


@pytest.mark.parametrize("odd", [ODD, [(LATIN_1, b"x"), *PERMISSION], [*PERMISSION, (LATIN_1, b"x")]])
def test_only_the_header_without_a_readable_name_is_left_out(
    mock_cluster: Cluster, topic: str, odd: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    found = message(mock_cluster, topic, *odd)
    assert headers_of(found) == OTHERS
    assert headers_of(found) == OTHERS
    [said] = [line for line in caplog.messages if "not UTF-8" in line]
    assert said.startswith(f"The record at offset 0 of partition 0 of {topic}-0 has a header")


def test_a_record_with_no_other_header_has_none(mock_cluster: Cluster, topic: str) -> None:
    assert list(headers_of(message(mock_cluster, topic, (LATIN_1, b"x"), (b"\xfe\xff", b"y")))) == []


class WithHeaders(Deserializer):
    """A deserialiser that returns the headers it was given."""

    def __call__(self, value: bytes | None, ctx: Any = None) -> Any:
        return ctx.headers


def test_a_priority_consumer_and_the_command_line_have_the_others(mock_cluster: Cluster, topic: str) -> None:
    put(mock_cluster, topic, *ODD)
    config = {
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "levels": 1,
        "max.poll.records": 10,
        "value.deserializer": WithHeaders(),
    }
    with closing(PriorityConsumer(mock_cluster.config(config))) as consumer:
        consumer.subscribe(topic)
        found: list[ConsumerRecord] = []
        while not found:
            found += consumer.poll(0.5)
    [record] = found
    assert record.headers == record.value == OTHERS
    assert [each["name"] for each in json.loads(record_json(record))["headers"]] == [name for name, _ in OTHERS]


@pytest.mark.parametrize("expires_after", [None, 3600.0])
def test_a_record_expires_and_has_its_tenant_all_the_same(
    mock_cluster: Cluster, topic: str, expires_after: float | None
) -> None:
    past, future = (str(round((time.time() + shift) * 1000)).encode() for shift in (-60, 600))
    for value, at in ((b"old", past), (b"new", future), (b"older", past), (b"newer", future)):
        put(mock_cluster, topic, (b"headway.expires", at), *ODD, value=value)
    handled: list[Any] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        handled.append((record.value, record.headers[1:]))

    config = mock_cluster.config({"group.id": topic, "auto.offset.reset": "earliest"})
    with ParallelConsumer(config, tenant="header:customer", expires_after=expires_after) as parallel:
        parallel.subscribe(f"{topic}-0")
        running = threading.Thread(target=parallel.run, args=(handle,))
        running.start()
        wait_for(lambda: parallel.metrics().done == 4)
        tenants = parallel.metrics().busiest_tenants
        parallel.stop()
        running.join()
    assert sorted(handled) == [(b"new", OTHERS), (b"newer", OTHERS)]
    assert set(tenants) == {"acme"}


def test_a_relay_reads_the_schedule_of_a_record(mock_cluster: Cluster, topic: str) -> None:
    name, value = Schedule("some-id", due=2_000, at=1_000, order=0, topic="orders").header()
    assert isinstance(value, bytes)
    fetched = fetched_from(message(mock_cluster, topic, *ODD, (name.encode(), value)))
    assert isinstance(fetched.schedule, Schedule)
    assert (fetched.schedule.id, fetched.schedule.topic) == ("some-id", "orders")


def test_a_spark_source_and_the_readers_of_dead_letters_have_the_others(mock_cluster: Cluster, topic: str) -> None:
    found = message(mock_cluster, topic, *ODD, (f"{PREFIX}reason".encode(), b"why"))
    batch = columns_of([found], headers=True)  # type: ignore[list-item]  # the function of the tests returns the protocol
    all_of_them = [*OTHERS, (f"{PREFIX}reason", b"why")]
    assert [(each["key"], each["value"]) for each in batch["headers"][0].as_py()] == all_of_them
    letter = Letter.of(found, settled=False)
    assert letter.headers == all_of_them
    assert letter.failure is not None
    assert letter.failure.reason == dead_letter_of(found).reason == "why"


def test_records_beside_it_are_read_as_ever(mock_cluster: Cluster, topic: str) -> None:
    put(mock_cluster, topic, *ODD)
    send(mock_cluster, f"{topic}-0", [("k", "plain")], 0)
    put(mock_cluster, topic, *PERMISSION)
    assert [list(headers_of(each)) for each in messages(mock_cluster, topic, 3)] == [OTHERS, [], OTHERS]
