"""The first records for a partition that its leader does not take yet: none is lost in silence."""

import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Producer
from headway.core.outgoing_record import OutgoingRecord
from headway.errors import DeliveryError
from headway.kafka.producer.client import ProducerClient
from headway.records.record_types import RecordMetadata
from tests.contract.conftest import Cluster
from tests.contract.mock_brokers import MockBrokers, mock_brokers

PRODUCE, LIST_OFFSETS = 0, 2  # Kafka's numbers for requests
NOT_LEADER = 6
UNTIL_BOTH_ARE_SENT = 4_000  # milliseconds, on a busy machine
PARTITIONS = 20


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        yield brokers


def producer_for(brokers: MockBrokers, **settings: Any) -> Producer:
    own = {"bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 0, "retry.backoff.ms": 1000, "log_level": 0}
    return Producer({**own, **settings})


def refuse_the_first_of_two(brokers: MockBrokers, producer: Producer) -> list[Future[RecordMetadata]]:
    """Send two records of which Kafka refuses the first and takes the second, both on their way at once."""
    leader = brokers.create("orders")[0]
    producer.send("orders", b"known", partition=1)
    producer.flush(30)
    brokers.answer_after(leader, UNTIL_BOTH_ARE_SENT)
    brokers.refuse(PRODUCE, NOT_LEADER, times=1)
    brokers.count_requests()
    sent: list[Future[RecordMetadata]] = [producer.send("orders", b"1", partition=0)]
    brokers.wait_for(PRODUCE, 1)
    sent.append(producer.send("orders", b"2", partition=0))
    brokers.wait_for(PRODUCE, 2)
    brokers.answer_after(leader, 0)
    return sent


@pytest.mark.slow
def test_a_record_that_librdkafka_only_takes_for_stored_has_failed(brokers: MockBrokers) -> None:
    with producer_for(brokers) as producer:
        first, second = refuse_the_first_of_two(brokers, producer)
        assert second.result(30).offset >= 0
        with pytest.raises(DeliveryError, match="A record for orders at level 0 might not be stored"):
            first.result(30)


def test_a_report_without_an_offset_comes_with_an_error(brokers: MockBrokers) -> None:
    settings = {
        "bootstrap.servers": brokers.bootstrap_servers,
        "linger.ms": 0,
        "retry.backoff.ms": 1000,
        "log_level": 0,
    }
    reports: list[ck.KafkaError | None] = []
    client = ProducerClient({**settings, "enable.idempotence": True})

    def send(partition: int) -> None:
        client.produce(OutgoingRecord("orders", b"1", None, partition), lambda error, _: reports.append(error))

    leader = brokers.create("orders")[0]
    send(1)
    client.flush(30)
    brokers.answer_after(leader, UNTIL_BOTH_ARE_SENT)
    brokers.refuse(PRODUCE, NOT_LEADER, times=1)
    brokers.count_requests()
    send(0)
    brokers.wait_for(PRODUCE, 1)
    send(0)
    brokers.wait_for(PRODUCE, 2)
    brokers.answer_after(leader, 0)
    client.close(30)
    assert [error and error.name() for error in reports].count(None) == 2
    assert "acknowledged later records, but not this one" in str(next(filter(None, reports)))


def test_records_wait_until_the_leader_of_a_new_partition_answers_for_it(brokers: MockBrokers) -> None:
    brokers.create("orders")
    brokers.refuse(LIST_OFFSETS, NOT_LEADER, times=3)
    with producer_for(brokers) as producer:
        sent = [producer.send("orders", b"1", partition=number % 4) for number in range(8)]
        assert all(future.result(30).offset >= 0 for future in sent)
    brokers.accept(LIST_OFFSETS)


@pytest.mark.slow
@pytest.mark.kafka
def test_all_that_is_sent_while_a_topic_is_being_made_is_stored(kafka_cluster: Cluster) -> None:
    servers: dict[str, Any] = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    admin = AdminClient({"log_level": 0, **servers})
    for _ in range(10):  # without the wait for the partitions about one record in 3,000 was lost
        topic = f"new-{uuid.uuid4().hex[:8]}"
        created = admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        with Producer({**servers, "linger.ms": 0}) as producer:
            while topic not in admin.list_topics(timeout=10).topics:
                pass
            sent = [producer.send(topic, b"%d" % number, partition=number % PARTITIONS) for number in range(300)]
            assert {future.result(30).offset for future in sent} == set(range(300 // PARTITIONS))
        created[topic].result(10)
    consumer = ck.Consumer({"log_level": 0, **servers, "group.id": "nobody"})
    ends = [consumer.get_watermark_offsets(ck.TopicPartition(topic, number)) for number in range(PARTITIONS)]
    consumer.close()
    assert ends == [(0, 300 // PARTITIONS)] * PARTITIONS
