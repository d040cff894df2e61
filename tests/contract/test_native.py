"""The exact metadata path, on librdkafka's mock cluster and on Apache Kafka."""

import os
import select
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from headway.errors import ClosedError
from headway.kafka import native


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """Bootstrap servers of a cluster that lives inside one librdkafka client."""
    keeper = Producer({"test.mock.num.brokers": 1, "log_level": 2})
    brokers = keeper.list_topics(timeout=10).brokers
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
    del keeper  # and the cluster with it


def consumer_of(servers: str) -> Consumer:
    settings = {
        "group.id": f"group-{uuid.uuid4()}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer({"bootstrap.servers": servers, "log_level": 2, **settings})


@pytest.fixture
def consumer(mock_cluster: str) -> Iterator[Consumer]:
    client = consumer_of(mock_cluster)
    yield client
    client.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    yield read, write
    os.close(read)
    os.close(write)


def produce(servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 2, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(10) == 0


def drain(consumer: Consumer, read: int, expected: int) -> list[bytes | None]:
    """Values of the expected number of records, waiting by `select` alone."""
    values: list[bytes | None] = []
    while len(values) < expected:
        assert select.select([read], [], [], 20)[0], f"no wake-up after {values}"
        os.read(read, 64)
        while polled := consumer.consume(10, 0):
            values += [message.value() for message in polled if message.error() is None]
    return values


def test_a_file_descriptor_becomes_readable_when_records_arrive(
    mock_cluster: str, consumer: Consumer, pipe: tuple[int, int]
) -> None:
    read, write = pipe
    native.wake_on_records(consumer, write)
    consumer.subscribe(["woken"])
    produce(mock_cluster, "woken", b"one", b"two")
    assert drain(consumer, read, 2) == [b"one", b"two"]
    produce(mock_cluster, "woken", b"three")
    assert drain(consumer, read, 1) == [b"three"]


def test_no_wake_up_comes_after_it_was_ended(mock_cluster: str, consumer: Consumer, pipe: tuple[int, int]) -> None:
    read, write = pipe
    native.wake_on_records(consumer, write)
    consumer.subscribe(["ended"])
    produce(mock_cluster, "ended", b"one")
    assert drain(consumer, read, 1) == [b"one"]
    native.wake_on_records(consumer, None)
    produce(mock_cluster, "ended", b"two")
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"two"
    assert not select.select([read], [], [], 0)[0]


def test_a_closed_client_is_refused_with_our_error(mock_cluster: str) -> None:
    client = consumer_of(mock_cluster)
    client.close()
    with pytest.raises(ClosedError):
        native.wake_on_records(client, None)


def test_only_a_client_of_the_binding_has_a_handle() -> None:
    with pytest.raises(TypeError, match="str is not a client"):
        native.wake_on_records("consumer", None)  # type: ignore[arg-type]
