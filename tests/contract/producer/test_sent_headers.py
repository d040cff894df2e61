"""Headers and timestamps that the binding would take for something else, in every way a record goes out."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka.serialization import Serializer

from headway import AsyncProducer, Producer
from headway.core.outgoing_record import OutgoingRecord
from headway.delay.schedule_encoder import checked_headers
from headway.errors import SerializationError
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.columnar import ColumnarProducer, Columns
from headway.parallel.outputs import HandlerOutputs
from headway.records.record_types import ConsumerRecord, ProducerRecord
from headway.settings.config import OutputSettings
from tests.contract.conftest import Cluster
from tests.contract.producer.test_producer import read_all

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}

BAD = {
    "a lone surrogate": ([("trace\ud800", b"x")], r"named 'trace\\ud800', which cannot be encoded in UTF-8"),
    "a NUL": ([("a\0b", b"x")], r"named 'a\\x00b', which Kafka's client would cut"),
    "no string": ([(None, b"x")], "whose name is NoneType, not a string"),
    "bytes": ([(b"a", b"x")], "whose name is bytes, not a string"),
    "a value with a lone surrogate": ([("a", "\ud800")], "'a' whose value cannot be encoded in UTF-8"),
    "a value of another kind": ([("a", 5)], "'a' whose value is int"),
    "no pair": ([("a", b"b", b"c")], "a header that is tuple, not a tuple of a name and a value"),
}


@contextmanager
def _closed_at_once(sends: Producer) -> Iterator[Producer]:
    try:
        yield sends
    finally:
        sends.close(0)


def send(headers: Any) -> None:
    """With a producer that does not serialise."""
    with _closed_at_once(Producer(NOWHERE)) as sends:
        _failure_of(sends.send("orders", b"v", headers=headers, on_delivery=lambda *_: None))


def send_by_priority(headers: Any) -> None:
    """With levels."""
    with _closed_at_once(Producer(NOWHERE | {"levels": 2})) as sends:
        _failure_of(sends.send("orders", b"v", headers=headers, level=1, on_delivery=lambda *_: None))


def send_serialised(headers: Any) -> None:
    """With a serialiser, on whose thread the record waits."""
    with _closed_at_once(Producer(NOWHERE | {"value.serializer": bytes})) as sends:
        _failure_of(sends.send("orders", b"v", headers=headers, on_delivery=lambda *_: None))


def try_to_send(headers: Any) -> None:
    """Only if there is room."""
    with _closed_at_once(Producer(NOWHERE)) as sends:
        future = sends.try_send("orders", b"v", headers=headers, on_delivery=lambda *_: None)
        assert future is not None
        _failure_of(future)


def send_in_a_loop(headers: Any) -> None:
    """With the producer for asyncio."""

    async def run() -> None:
        async with AsyncProducer(NOWHERE | {"levels": 1}) as sends:
            await sends.send("orders", b"v", headers=headers)

    asyncio.run(run())


def produce(headers: Any) -> None:
    """With the client of dead letters, relays and what is sent again."""
    client = ProducerClient(NOWHERE)
    try:
        client.produce(OutgoingRecord("orders", b"v", None, 0, headers=headers), lambda *_: None)
    finally:
        client.close(0)


def return_from_a_handler(headers: Any) -> None:
    """As the output of a parallel consumer."""
    client = ProducerClient(NOWHERE)
    try:
        outputs = HandlerOutputs(OutputSettings.parse({}), client, None, NOWHERE, "delay")
        outputs.of(None, ProducerRecord("orders", b"v", headers=headers))  # type: ignore[arg-type]
    finally:
        client.close(0)


def schedule(headers: Any) -> None:
    """With a due time."""
    checked_headers(headers, "orders")


def write_rows(headers: Any) -> None:
    """As a row of Spark's."""
    with ColumnarProducer(NOWHERE) as rows:
        rows.send(Columns(1, 1, repeat("orders", 1), [b"v"], [None], [0], [headers]))


class _Adding(Serializer):
    """Adds a header whose name nobody can encode, as a schema registry's may add its own."""

    def __call__(self, value: Any, context: Any = None) -> bytes:
        context.headers.append(("\ud800", b"x"))
        return bytes(value)


def _failure_of(future: Any) -> None:
    raise future.exception(10)


WAYS = [
    send,
    send_by_priority,
    send_serialised,
    try_to_send,
    send_in_a_loop,
    produce,
    return_from_a_handler,
    schedule,
    write_rows,
]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_header_that_the_binding_would_not_take_as_it_is_fails_its_record(
    way: Callable[[Any], None], kind: str
) -> None:
    headers, sentence = BAD[kind]
    with pytest.raises(SerializationError, match=sentence):
        way(headers)


def pairs() -> Iterator[tuple[str, bytes]]:
    """Give headers that can be gone through only once."""
    yield "a", b"1"
    yield "b", b"2"


ONCE: dict[str, Callable[[], Iterable[Any]]] = {
    "generator": pairs,
    "map": lambda: map(tuple, [["a", b"1"], ["b", b"2"]]),
    "zip": lambda: zip(["a", "b"], [b"1", b"2"], strict=True),
    "dict": lambda: {"a": b"1", "b": b"2"},
    "mapping": lambda: MappingProxyType({"a": b"1", "b": b"2"}),
}


@pytest.mark.parametrize("serializers", [{}, {"value.serializer": bytes}], ids=["none", "bytes"])
def test_headers_may_be_anything_that_is_gone_through_once(mock_cluster: Cluster, serializers: dict[str, Any]) -> None:
    topic = mock_cluster.topic()
    with mock_cluster.producer(**serializers) as sends:
        for make in ONCE.values():
            sends.send(topic, b"v", headers=make(), partition=0)  # type: ignore[arg-type]
            assert sends.try_send(topic, b"v", headers=make(), partition=0)  # type: ignore[arg-type]
        assert sends.flush(30) == 0
    records: list[ConsumerRecord] = read_all(mock_cluster, topic, 2 * len(ONCE))
    assert [list(record.headers) for record in records] == [list(pairs())] * 2 * len(ONCE)


def test_headers_that_are_changed_while_their_record_waits_are_sent_as_they_were(mock_cluster: Cluster) -> None:
    topic, headers, changed = mock_cluster.topic(), [("a", b"1")], threading.Event()

    def wait_for_the_change(value: bytes) -> bytes:
        assert changed.wait(30)
        return value

    with mock_cluster.producer(**{"value.serializer": wait_for_the_change}) as sends:
        sends.send(topic, b"v", headers=headers)
        second = sends.send(topic, b"v", headers=headers)
        headers[0] = ("b", b"2")
        changed.set()
        second.result(30)
    assert [list(record.headers) for record in read_all(mock_cluster, topic, 2)] == [[("a", b"1")]] * 2


def test_what_a_serialiser_adds_to_the_headers_is_checked_too(mock_cluster: Cluster) -> None:
    topic = mock_cluster.topic()
    with mock_cluster.producer(**{"value.serializer": _Adding()}) as sends:
        with pytest.raises(SerializationError, match="cannot be encoded in UTF-8"):
            sends.send(topic, b"v", on_delivery=lambda *_: None).result(30)
        assert sends.flush(30) == 0


@pytest.mark.parametrize("serializers", [{}, {"value.serializer": bytes}], ids=["none", "bytes"])
def test_a_timestamp_of_0_is_refused_rather_than_stored_as_now(serializers: dict[str, Any]) -> None:
    with _closed_at_once(Producer(NOWHERE | serializers)) as sends:
        refused = sends.send("orders", b"v", timestamp=0, on_delivery=lambda *_: None).exception(10)
    assert isinstance(refused, SerializationError)
    assert "has timestamp=0, which Kafka's client would replace by the current time; leave" in str(refused)


def test_an_output_with_the_timestamp_0_is_refused() -> None:
    client = ProducerClient(NOWHERE)
    try:
        outputs = HandlerOutputs(OutputSettings.parse({}), client, None, NOWHERE, "delay")
        with pytest.raises(SerializationError, match="timestamp=0"):
            outputs.of(None, ProducerRecord("orders", b"v", timestamp=0))  # type: ignore[arg-type]
    finally:
        client.close(0)
