"""A producer whose brokers die and come back, on a real Apache Kafka of three nodes."""

import uuid
from collections.abc import Iterator

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Producer
from headway.broker import LocalBroker
from headway.kafka.producer.delivery import DeliveryFuture

PARTITIONS = 2
AT_A_TIME = 5_000

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[LocalBroker]:
    with LocalBroker(nodes=3, ephemeral=True) as broker:
        yield broker


def test_a_leader_that_is_killed_and_one_that_leaves_lose_and_reorder_nothing(three_nodes: LocalBroker) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": three_nodes.bootstrap_servers})
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    created = admin.create_topics([NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "1"})])
    created[topic].result(30)
    futures: list[list[DeliveryFuture]] = [[] for _ in range(PARTITIONS)]

    def send_some(producer: Producer) -> None:
        for _ in range(AT_A_TIME):
            for partition, sent in enumerate(futures):
                sent.append(producer.send(topic, b"%d" % len(sent), partition=partition))

    def leader() -> int:
        return admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader

    with Producer({"bootstrap.servers": three_nodes.bootstrap_servers, "linger.ms": 1, "log_level": 0}) as producer:
        for end in ("kill", "stop"):
            send_some(producer)
            [node] = [node for node in three_nodes.nodes if node.id == leader()]
            getattr(node, end)()  # with some of them under way
            send_some(producer)
            assert futures[0][-1].result(60)
            node.start()
        offsets = [[future.result(60).offset for future in sent] for sent in futures]
    assert offsets == [list(range(4 * AT_A_TIME))] * PARTITIONS
    for partition in range(PARTITIONS):
        assert read(three_nodes, topic, partition) == list(range(4 * AT_A_TIME))


def read(broker: LocalBroker, topic: str, partition: int) -> list[int]:
    """The values that a partition holds, in their order."""
    consumer = ck.Consumer({"log_level": 0, "bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.assign([ck.TopicPartition(topic, partition, 0)])
    _, end = consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), 10)
    values: list[int] = []
    while len(values) < end:
        values += [int(message.value()) for message in consumer.consume(1000, 1.0)]  # type: ignore[arg-type]
    consumer.close()
    return values
