"""Members that keep their partitions while they restart (KIP-345), on a real Apache Kafka."""

import threading
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from headway import ConsumerRecord, Context
from headway.errors import KafkaError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    COOPERATIVE,
    Member,
    consumer,
    plain_topic,
    send,
    wait_for,
)

pytestmark = pytest.mark.kafka


@pytest.mark.quick("cooperative")
@pytest.mark.parametrize("settings", [{}, COOPERATIVE, CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
def test_a_static_member_that_restarts_moves_nothing_and_loses_nothing(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = plain_topic(kafka_cluster)
    handled: dict[tuple[str, int], int] = Counter()

    def join(name: str) -> Member:
        def handle(record: ConsumerRecord, context: Context) -> None:
            handled[name, record.partition] += 1

        own = {"group.instance.id": name, "auto.commit.interval.ms": 100}
        # For the second time "b" has as long as its session lasts.
        return Member(consumer(kafka_cluster, topic, **{"session.timeout.ms": 45_000} | settings | own), handle)

    def send_to_all() -> None:
        for partition in range(4):
            send(kafka_cluster, topic, [(None, "")], partition)

    def shares() -> dict[str, set[int]]:
        return {name: {partition for each, partition in list(handled) if each == name} for name in ("a", "b")}

    def is_shared() -> bool:
        handled.clear()
        send_to_all()
        wait_for(lambda: sum(handled.values()) == 4)
        return all(len(share) == 2 for share in shares().values())

    first, second = join("a"), join("b")
    try:
        wait_for(is_shared)
        before = shares()
        second.stop()
        assert members_of(kafka_cluster, topic) == ["a", "b"]
        handled.clear()
        send_to_all()
        wait_for(lambda: sum(handled.values()) == 2)
        assert set(handled) == {("a", partition) for partition in before["a"]}
        second = join("b")
        wait_for(lambda: sum(handled.values()) == 4)
        assert shares() == before
        assert members_of(kafka_cluster, topic) == ["a", "b"]
    finally:
        first.stop()
        second.stop()
    assert set(handled.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_a_run_ends_where_another_member_takes_over_its_id(kafka_cluster: Cluster, settings: dict[str, Any]) -> None:
    topic = plain_topic(kafka_cluster)
    handled = threading.Semaphore(0)

    def join() -> Member:
        own = {"group.instance.id": "only", "auto.commit.interval.ms": 100}
        return Member(consumer(kafka_cluster, topic, **settings | own), lambda record, context: handled.release())

    first = join()
    send(kafka_cluster, topic, [("a", "1")])
    assert handled.acquire(timeout=30)
    second = join()
    try:
        wait_for(lambda: first.error)
        with pytest.raises(
            KafkaError,
            match=r"The consumer for level 0 cannot continue: .*fenced.* group\.instance\.id, give each consumer an id",
        ):
            first.stop()
        send(kafka_cluster, topic, [("a", "2")])
        assert handled.acquire(timeout=30)
    finally:
        second.stop()


def members_of(cluster: Cluster, group: str) -> list[str | None]:
    """Who is in a group, by name."""
    admin = AdminClient(cluster.config({"log_level": 0}))  # kept until it has answered
    described = admin.describe_consumer_groups([group])[group].result(30)
    return sorted(member.group_instance_id for member in described.members)
