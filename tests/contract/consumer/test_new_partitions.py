"""A partition that is added to a topic which a group reads begins at its first record, whatever `auto.offset.reset`."""

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    COOPERATIVE,
    OFTEN,
    Member,
    Settings,
    committed,
    consumer,
    send,
    topic_of,
    wait_for,
)


def send_until_seen(cluster: Cluster, topic: str, seen: set[str]) -> None:
    """Send records to all partitions until the group has begun and gets some."""

    def sees_one() -> bool:
        send(cluster, topic, [(f"key-{number}", "new") for number in range(50)])
        return bool(seen)

    wait_for(sees_one)


@pytest.mark.quick("cooperative", "consumer")
@pytest.mark.parametrize("protocol", [{}, COOPERATIVE, CONSUMER_PROTOCOL], ids=["classic", "cooperative", "consumer"])
def test_with_latest_nothing_sent_to_a_new_partition_is_passed_over(kafka_cluster: Cluster, protocol: Settings) -> None:
    topic = topic_of(kafka_cluster, 1)
    seen: set[str] = set()
    settings: Settings = {"auto.offset.reset": "latest", "topic.metadata.refresh.interval.ms": 2000} | OFTEN | protocol
    member = Member(
        consumer(kafka_cluster, topic, **settings), lambda record, _: seen.add((record.raw_value or b"").decode())
    )
    try:
        send_until_seen(kafka_cluster, topic, seen)
        admin = AdminClient(kafka_cluster.config({"log_level": 0}))
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        kafka_cluster.forget_topics()
        wanted = set()
        for partition in (1, 2):
            values = [f"{partition}:{number}" for number in range(25)]
            wanted.update(values)
            send(kafka_cluster, topic, [(None, value) for value in values], partition)
        wait_for(lambda: wanted <= seen, 60)
        wait_for(lambda: committed(kafka_cluster, topic).keys() == {0, 1, 2})
    finally:
        member.stop()


def test_with_latest_a_group_that_begins_passes_over_what_was_sent_before(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 3)
    send(kafka_cluster, topic, [(f"key-{number}", "old") for number in range(50)])
    seen: set[str] = set()
    settings: Settings = {"auto.offset.reset": "latest"}
    member = Member(
        consumer(kafka_cluster, topic, **settings),
        lambda record, _: seen.add((record.raw_value or b"").decode()),
    )
    try:
        send_until_seen(kafka_cluster, topic, seen)
    finally:
        member.stop()
    assert "old" not in seen
