"""What `take_messages` returns, from the C module and from the binding, on librdkafka's mock cluster."""

import copy
import gc
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from headway.core.record_size import size_of
from headway.kafka.binding import messages
from headway.kafka.binding.messages import fetched_columns, take_messages
from headway.records.record_types import headers_of
from tests.odd_headers import LATIN_1, send_with_headers

SENT: list[dict[str, Any]] = [
    {"value": b"value", "key": b"key"},
    {"value": None, "key": None},
    {"value": b"", "key": b""},
    {"value": bytes(range(256)) * 300, "key": b"\0key"},
    {"value": b"v", "headers": [("trace", b"1"), ("trace", b""), ("größe", b"\xff"), ("none", None)]},
    {"value": b"v", "timestamp": 1},
]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """The bootstrap servers of a mock cluster."""
    with closing(Producer({"test.mock.num.brokers": 1, "log_level": 2})) as client:
        yield ",".join(f"{each.host}:{each.port}" for each in client.list_topics(timeout=10).brokers.values())


@pytest.fixture(params=["compiled", "plain"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which implementation takes the messages."""
    if request.param == "compiled" and not messages.IS_COMPILED:
        pytest.skip("the C module is not compiled")
    monkeypatch.setattr(messages, "IS_COMPILED", request.param == "compiled")
    if request.param == "plain":
        monkeypatch.setattr(messages, "FetchedMessage", Message)
    return str(request.param)


@pytest.fixture
def topic(servers: str) -> str:
    """A topic with `SENT` in partition 0, and a record with an odd header in partition 1."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with closing(Producer({"bootstrap.servers": servers, "log_level": 2})) as producer:
        for each in SENT:
            producer.produce(name, partition=0, **each)
        assert producer.flush(30) == 0
    send_with_headers(servers, name, [(LATIN_1, b"x"), (b"trace", b"1")], partition=1)
    return name


def consumer_of(servers: str, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "log_level": 2,
            **settings,
        }
    )


def take(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += take_messages(consumer, count - len(found), 0.1)[0]
    return found


def taken(servers: str, topic: str, partition: int, count: int) -> list[Message]:
    with closing(consumer_of(servers)) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        return take(consumer, count)


def fields(message: Message) -> tuple[Any, ...]:
    place = message.topic(), message.partition(), message.offset(), message.leader_epoch()
    return *place, message.key(), message.value(), message.headers(), message.timestamp()


def test_a_message_has_the_fields_of_its_record(servers: str, topic: str, kind: str) -> None:
    found = taken(servers, topic, 0, len(SENT))
    assert [message.offset() for message in found] == list(range(len(SENT)))
    for message, sent in zip(found, SENT, strict=True):
        assert (message.topic(), message.partition()) == (topic, 0)
        assert (message.key(), message.value()) == (sent.get("key"), sent["value"])
        assert message.headers() == sent.get("headers")
        assert message.headers() == sent.get("headers")
    assert found[-1].timestamp()[1] == 1
    assert found[0].timestamp()[1] == pytest.approx(time.time() * 1000, abs=60_000)


def test_both_return_the_same(servers: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = taken(servers, topic, 0, len(SENT))
    monkeypatch.setattr(messages, "IS_COMPILED", False)
    assert list(map(fields, compiled)) == list(map(fields, taken(servers, topic, 0, len(SENT))))


def test_columns_have_offsets_sizes_and_the_end_of_each_partitions_run(servers: str, topic: str, kind: str) -> None:
    found, other = taken(servers, topic, 0, len(SENT)), taken(servers, topic, 1, 1)
    columns = fetched_columns(found + other + found[:2])
    assert columns.offsets == [*range(len(SENT)), 0, 0, 1]
    sizes = [size_of(each["value"], each.get("key")) for each in SENT]
    assert columns.sizes == [*sizes, size_of(b"v", None), *sizes[:2]]
    assert columns.ends == [len(SENT), len(SENT) + 1, len(SENT) + 3]
    assert columns.may_have_headers
    assert fetched_columns([]).ends == []
    assert fetched_columns(found[:1]).may_have_headers is (kind == "plain")


def test_a_header_whose_name_is_not_utf_8_is_left_out(servers: str, topic: str, kind: str) -> None:
    [message] = taken(servers, topic, 1, 1)
    assert headers_of(message) == [("trace", b"1")]
    assert headers_of(message) == [("trace", b"1")]


def test_a_message_can_be_copied_and_pickled(servers: str, topic: str, kind: str) -> None:
    for message in taken(servers, topic, 0, len(SENT)):
        expected = fields(message)
        for other in (copy.deepcopy(message), pickle.loads(pickle.dumps(message))):  # noqa: S301 - our own bytes
            assert fields(other) == expected


def test_a_message_outlives_its_consumer_and_its_headers_are_unpacked_once(servers: str, topic: str, kind: str) -> None:
    message = taken(servers, topic, 0, len(SENT))[4]
    gc.collect()
    readers = [threading.Thread(target=message.headers) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert message.headers() is message.headers()


def test_events_are_returned_apart_from_records(servers: str, topic: str, kind: str) -> None:
    with closing(consumer_of(servers, **{"enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        records: list[Message] = []
        events: list[Message] = []
        deadline = time.monotonic() + 30
        while not events and time.monotonic() < deadline:
            found = take_messages(consumer, 100, 0.1)
            records += found[0]
            events += found[1]
    assert len(records) == len(SENT)
    [event] = events
    error = event.error()
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF
    assert (event.topic(), event.partition(), event.offset()) == (topic, 0, len(SENT))


def test_rebalance_callbacks_run_in_the_call_which_raises_what_they_raise(servers: str, topic: str, kind: str) -> None:
    called_on: list[int] = []

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        called_on.append(threading.get_ident())
        consumer.assign(partitions)  # a call of the same consumer within the call
        if len(called_on) == 1:  # on a slow machine there are further rebalances, and `close` would wait for them
            raise ValueError("from the callback")

    with closing(consumer_of(servers)) as consumer:
        consumer.subscribe([topic], on_assign=on_assign)
        with pytest.raises(ValueError, match="from the callback"):
            take(consumer, 1)
        assert set(called_on) == {threading.get_ident()}
        assert len(take(consumer, 1)) == 1


def test_a_closed_consumer_and_wrong_arguments_are_refused(servers: str, kind: str) -> None:
    consumer = consumer_of(servers)
    for wrong in (-1, 1_000_001):
        with pytest.raises((ValueError, OverflowError)):
            take_messages(consumer, wrong, 0)
    assert take_messages(consumer, 0, 0) == ([], [])
    consumer.close()
    with pytest.raises(RuntimeError, match="closed"):
        take_messages(consumer, 1, 0)


def test_a_call_waits_while_another_thread_uses_the_consumer(servers: str, topic: str, kind: str) -> None:
    with closing(consumer_of(servers)) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[Message] = []

        def some() -> None:
            with suppress(TimeoutError):
                for _ in range(30):
                    found.extend(take_messages(consumer, 1, 0.05)[0])

        threads = [threading.Thread(target=some) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(message.offset() or 0 for message in found) == list(range(len(SENT)))


def test_what_is_not_a_consumer_is_refused_by_the_c_module() -> None:
    native = pytest.importorskip("headway.kafka.binding.native_messages")
    for wrong in (None, "consumer", object(), Message):
        with pytest.raises(TypeError):
            native.take(wrong, 1, 0)
    for arguments in ((), ("topic", 0, 0, "key", None, None, 0, 0, -1), ("topic", 2**40, 0, None, None, None, 0, 0, 0)):
        with pytest.raises((TypeError, OverflowError)):
            native.Message(*arguments)
    for wrong in (([Message()], 0), ([None], 0), ((), 0), ([], 2**70), ()):
        with pytest.raises((TypeError, OverflowError)):
            native.columns(*wrong)
    for addresses in ((), (0,) * 16, ("address",) * 16):
        with pytest.raises((TypeError, ValueError)):
            native.bind(Consumer, addresses)
