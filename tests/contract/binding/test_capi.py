"""The exact metadata path, on librdkafka's mock cluster and on Apache Kafka."""

import ctypes
import os
import select
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition, cimpl
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway.core.offsets.offset_map import MAX_CHARACTERS, OffsetMap, commit_of, decode_map
from headway.errors import ClosedError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.librdkafka import handle_of, lib

if TYPE_CHECKING:
    from headway.broker import LocalBroker

OFFSET_COMMIT = 8  # its number in the protocol
ILLEGAL_GENERATION = 22
METADATA = [b"", b"bAAFGgA=", b"x", "\N{GREEK SMALL LETTER PI}".encode(), b"m" * MAX_CHARACTERS]


@pytest.fixture(scope="module")
def keeper() -> Iterator[Producer]:
    """The client that a mock cluster lives in, and with which it ends."""
    with closing(Producer({"test.mock.num.brokers": 1, "log_level": 2})) as client:
        yield client


@pytest.fixture(scope="module")
def mock_cluster(keeper: Producer) -> str:
    """Its bootstrap servers."""
    brokers = keeper.list_topics(timeout=10).brokers
    return ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())


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
    producer.close()


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
    capi.wake_on_events(consumer, write)
    consumer.subscribe(["woken"])
    produce(mock_cluster, "woken", b"one", b"two")
    assert drain(consumer, read, 2) == [b"one", b"two"]
    produce(mock_cluster, "woken", b"three")
    assert drain(consumer, read, 1) == [b"three"]


def test_no_wake_up_comes_after_it_was_ended(mock_cluster: str, consumer: Consumer, pipe: tuple[int, int]) -> None:
    read, write = pipe
    capi.wake_on_events(consumer, write)
    consumer.subscribe(["ended"])
    produce(mock_cluster, "ended", b"one")
    assert drain(consumer, read, 1) == [b"one"]
    capi.wake_on_events(consumer, None)
    produce(mock_cluster, "ended", b"two")
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"two"
    assert not select.select([read], [], [], 0)[0]


def test_a_closed_client_is_refused_with_our_error(mock_cluster: str) -> None:
    client = consumer_of(mock_cluster)
    client.close()
    with pytest.raises(ClosedError):
        capi.wake_on_events(client, None)


def test_only_a_client_of_the_binding_has_a_handle() -> None:
    with pytest.raises(TypeError, match="str is not a client"):
        capi.wake_on_events("consumer", None)  # type: ignore[arg-type]


def wait_for(pending: capi.PendingCommit) -> dict[capi.Partition, KafkaError]:
    refused = pending.refused(20)
    assert refused is not None, "no answer to a commit"
    return refused


@pytest.fixture
def topic(mock_cluster: str) -> str:
    name = f"topic-{uuid.uuid4()}"
    produce(mock_cluster, name, b"first")
    return name


@pytest.mark.parametrize("metadata", METADATA, ids=len)
def test_metadata_comes_back_byte_for_byte(consumer: Consumer, topic: str, metadata: bytes) -> None:
    assert wait_for(capi.PendingCommit(consumer, {(topic, 0): (17, metadata)})) == {}
    assert capi.committed(consumer, [(topic, 0)], 10) == {(topic, 0): (17, metadata)}


def test_the_trailing_nul_of_the_binding_is_seen(consumer: Consumer, topic: str) -> None:
    consumer.commit(offsets=[TopicPartition(topic, 0, 17, "bAAFGgA=")], asynchronous=False)
    assert capi.committed(consumer, [(topic, 0)], 10) == {(topic, 0): (17, b"bAAFGgA=\0")}


def test_many_partitions_are_committed_and_read_at_once(consumer: Consumer, topic: str) -> None:
    offsets = {(topic, partition): (partition, b"%d" % partition) for partition in range(3)}
    assert wait_for(capi.PendingCommit(consumer, offsets)) == {}
    assert capi.committed(consumer, [*offsets, (topic, 3)], 10) == {**offsets, (topic, 3): None}


def test_an_answer_stays_the_same(consumer: Consumer, topic: str) -> None:
    pending = capi.PendingCommit(consumer, {(topic, 0): (1, b"")})
    assert wait_for(pending) == {}
    assert pending.refused() == {}


def test_a_commit_that_the_broker_refuses_is_not_done(
    keeper: Producer, mock_cluster: str, consumer: Consumer, topic: str
) -> None:
    offsets: capi.CommittedOffsets = {(topic, 0): (5, b"")}
    assert wait_for(capi.PendingCommit(consumer, offsets)) == {}
    next_commit_fails(keeper, ILLEGAL_GENERATION)
    refused = wait_for(capi.PendingCommit(consumer, {(topic, 0): (6, b"")}))
    assert list(refused) == [(topic, 0)]
    with pytest.raises(KafkaError, match=f"Partition 0 of {topic} was not committed: .*generation.*[.]$"):
        raise refused[topic, 0]
    assert capi.committed(consumer, [(topic, 0)], 10) == {(topic, 0): (5, b"")}


def next_commit_fails(keeper: Producer, code: int) -> None:
    library, cluster = mock_of(keeper)
    request, once = ctypes.c_int16(OFFSET_COMMIT), ctypes.c_size_t(1)
    library.rd_kafka_mock_push_request_errors(cluster, request, once, ctypes.c_int(code))


def mock_of(keeper: Producer) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    library = ctypes.CDLL(cimpl.__file__)
    library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    library.rd_kafka_handle_mock_cluster.argtypes = [ctypes.c_void_p]
    return library, ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle_of(keeper)))


@pytest.fixture
def consumer_without_a_broker() -> Iterator[Consumer]:
    client = consumer_of("127.0.0.1:1")
    yield client
    client.close()


def test_a_commit_is_pending_until_the_broker_answers(
    keeper: Producer, mock_cluster: str, consumer: Consumer, topic: str
) -> None:
    capi.committed(consumer, [(topic, 0)], 10)  # the coordinator is known
    library, cluster = mock_of(keeper)
    library.rd_kafka_mock_broker_set_rtt(cluster, ctypes.c_int32(1), ctypes.c_int(300))
    try:
        pending = capi.PendingCommit(consumer, {(topic, 0): (1, b"")})
        assert pending.refused() is None
        assert wait_for(pending) == {}
    finally:
        library.rd_kafka_mock_broker_set_rtt(cluster, ctypes.c_int32(1), ctypes.c_int(0))


def test_a_commit_whose_consumer_was_closed_is_not_done(mock_cluster: str, topic: str) -> None:
    client = consumer_of(mock_cluster)
    pending = capi.PendingCommit(client, {(topic, 0): (1, b"")})
    client.close()
    with pytest.raises(ClosedError):
        pending.refused()


def test_a_commit_may_be_let_go(consumer: Consumer, topic: str) -> None:
    capi.PendingCommit(consumer, {(topic, 0): (1, b"")})
    assert wait_for(capi.PendingCommit(consumer, {(topic, 0): (2, b"")})) == {}


def test_no_answer_about_committed_offsets_is_an_error(consumer_without_a_broker: Consumer) -> None:
    with pytest.raises(KafkaError, match="The committed offset of partition 0 of topic could not be read: Local: "):
        capi.committed(consumer_without_a_broker, [("topic", 0)], 0.05)


def test_offsets_without_a_transaction_are_refused_with_the_bindings_error_as_cause(
    mock_cluster: str, consumer: Consumer
) -> None:
    producer = Producer({"bootstrap.servers": mock_cluster, "log_level": 2, "transactional.id": f"id-{uuid.uuid4()}"})
    with pytest.raises(KafkaError, match="The offsets were not added to the transaction: ") as raised:
        capi.send_offsets_to_transaction(
            producer, {("topic", 0): (1, b"")}, consumer.consumer_group_metadata(), timeout=1
        )
    assert isinstance(raised.value.__cause__, KafkaException)
    assert not raised.value.__cause__.args[0].txn_requires_abort()


def test_group_metadata_that_is_none_is_refused(mock_cluster: str) -> None:
    producer = Producer({"bootstrap.servers": mock_cluster, "log_level": 2})
    with pytest.raises(KafkaError, match="The consumer group's metadata cannot be read: "):
        capi.send_offsets_to_transaction(producer, {}, b"nonsense", timeout=1)
    producer.close()


def test_a_thousand_commits_leak_no_memory(consumer: Consumer, topic: str) -> None:
    metadata = b"m" * MAX_CHARACTERS

    def commit_and_read(times: int) -> None:
        for _ in range(times):
            assert wait_for(capi.PendingCommit(consumer, {(topic, 0): (1, metadata)})) == {}
            capi.committed(consumer, [(topic, 0)], 10)

    commit_and_read(200)
    before = resident_bytes()
    commit_and_read(1000)
    assert resident_bytes() - before < 1000 * MAX_CHARACTERS  # one leaked copy each would be that


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.fixture
def kafka_topic(headway_broker: "LocalBroker", headway_topic: str) -> str:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": headway_broker.bootstrap_servers})
    admin.create_topics([NewTopic(headway_topic, 3, 1)])[headway_topic].result(20)
    while admin.list_topics(headway_topic, timeout=20).topics[headway_topic].error:  # it appears a moment later
        time.sleep(0.05)
    return headway_topic


@pytest.fixture
def kafka_consumer(headway_broker: "LocalBroker", kafka_topic: str) -> Iterator[Consumer]:
    client = consumer_of(headway_broker.bootstrap_servers)
    yield client
    client.close()


@pytest.mark.kafka
@pytest.mark.parametrize("metadata", METADATA, ids=len)
def test_apache_kafka_keeps_metadata_byte_for_byte(kafka_consumer: Consumer, kafka_topic: str, metadata: bytes) -> None:
    assert wait_for(capi.PendingCommit(kafka_consumer, {(kafka_topic, 0): (17, metadata)})) == {}
    assert capi.committed(kafka_consumer, [(kafka_topic, 0)], 10) == {(kafka_topic, 0): (17, metadata)}


@pytest.mark.kafka
def test_apache_kafka_refuses_one_character_too_many(kafka_consumer: Consumer, kafka_topic: str) -> None:
    offsets: capi.CommittedOffsets = {
        (kafka_topic, 0): (1, b"m" * (MAX_CHARACTERS + 1)),
        (kafka_topic, 1): (2, b"other"),
    }
    refused = wait_for(capi.PendingCommit(kafka_consumer, offsets))
    assert "metadata" in str(refused[kafka_topic, 0])
    assert capi.committed(kafka_consumer, [(kafka_topic, 0)], 10) == {(kafka_topic, 0): None}


@pytest.mark.kafka
def test_a_transaction_carries_an_offset_map_exactly(
    headway_broker: "LocalBroker", kafka_consumer: Consumer, kafka_topic: str
) -> None:
    commit = commit_of(OffsetMap(5, (1, 49_995)))
    producer = Producer(
        {
            "log_level": 0,
            "bootstrap.servers": headway_broker.bootstrap_servers,
            "transactional.id": f"id-{uuid.uuid4()}",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(kafka_topic, b"output", partition=2)
    producer.flush(20)
    capi.send_offsets_to_transaction(
        producer,
        {(kafka_topic, 0): (commit.offset, commit.metadata.encode())},
        kafka_consumer.consumer_group_metadata(),
        timeout=20,
    )
    producer.commit_transaction(20)
    producer.close()
    result = capi.committed(kafka_consumer, [(kafka_topic, 0)], 10)[kafka_topic, 0]
    assert result == (5, commit.metadata.encode())
    assert decode_map(result[1], result[0]) == OffsetMap(5, (1, 49_995))


def test_a_queue_is_forwarded_back_while_it_still_gets_what_the_other_one_gets() -> None:
    with closing(Consumer({"group.id": "g", "bootstrap.servers": "127.0.0.1:1", "log_level": 0})) as consumer:
        handle = handle_of(consumer)
        queue, served = lib.rd_kafka_queue_new(handle), lib.rd_kafka_queue_get_consumer(handle)
        lib.rd_kafka_queue_forward(served, queue)
        deadline = time.monotonic() + 30
        while not lib.rd_kafka_queue_length(queue):  # until librdkafka tells that no broker answers
            assert time.monotonic() < deadline
            time.sleep(0.01)
        forwarding = threading.Thread(target=capi.forward_back, args=(queue, served), daemon=True)
        forwarding.start()
        forwarding.join(10)
        assert not forwarding.is_alive()
        assert lib.rd_kafka_queue_length(served)
        lib.rd_kafka_queue_destroy(queue)
        lib.rd_kafka_queue_destroy(served)
