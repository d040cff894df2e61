"""Each member reads the same partitions of all levels, through joins and leaves, on a real Apache Kafka."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ParallelConsumer, PriorityConsumer
from headway.core.levels.naming import level_group, level_topic
from headway.records.record_types import TopicPartition
from tests.contract.conftest import LEVELS, Cluster

pytestmark = pytest.mark.kafka

PARTITIONS = 6
PROTOCOL_OF_848 = {"group.protocol": "consumer", "group.remote.assignor": "range"}


class Member:
    """A consumer of either kind on a thread of its own."""

    def __init__(self, consumer: PriorityConsumer | ParallelConsumer, topic: str) -> None:
        self.consumer = consumer
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self.consumer as consumer:
            consumer.subscribe(self._topic)
            if isinstance(consumer, ParallelConsumer):
                consumer.run(lambda record: None)
                return
            while not self._ending.is_set():
                consumer.poll(0.1)

    def stop(self) -> None:
        self._ending.set()
        if isinstance(self.consumer, ParallelConsumer):
            self.consumer.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


def of_each_level(assigned: set[TopicPartition]) -> list[set[int]]:
    return [{each.partition for each in assigned if each.level == level} for level in range(LEVELS)]


def wait_until_shared(members: list[Member], topic: str, cluster: Cluster) -> None:
    """Until the members have all partitions, each the same of all levels, and their groups are at rest."""
    admin = AdminClient(cluster.config({"log_level": 0}))
    groups = [level_group(topic, level) for level in range(LEVELS)]
    deadline = time.monotonic() + 40
    while True:
        at_rest = False
        with contextlib.suppress(ck.KafkaException):  # a broker that has just started has no coordinator yet
            described = [asked.result(30) for asked in admin.describe_consumer_groups(groups).values()]
            at_rest = all(each.state.name == "STABLE" and len(each.members) == len(members) for each in described)
        shares = [of_each_level(member.consumer.assignment()) for member in members]
        sizes = {len(of_level) for share in shares for of_level in share}
        if at_rest and sizes == {PARTITIONS // len(members)}:
            break
        assert time.monotonic() < deadline, (at_rest, shares)
        threading.Event().wait(0.05)
    assert all(share == [share[0]] * LEVELS for share in shares)
    assert set().union(*(share[0] for share in shares)) == set(range(PARTITIONS))


@contextlib.contextmanager
def group_of(
    cluster: Cluster, make: Callable[[dict[str, Any]], PriorityConsumer | ParallelConsumer], **settings: Any
) -> Iterator[tuple[str, list[Member], Callable[[int], None]]]:
    """A new topic, the members of its group, and what adds a member by its number."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    topics = [NewTopic(level_topic(topic, level), PARTITIONS, 1) for level in range(LEVELS)]
    admin = AdminClient(cluster.config({"log_level": 0}))
    for created in admin.create_topics(topics).values():
        created.result(30)
    members: list[Member] = []

    def join(number: int) -> None:
        own = {"group.instance.id": f"member-{number}"} if settings.get("group.protocol") else {}
        config = cluster.config({"levels": LEVELS, "group.id": topic, "auto.offset.reset": "earliest"})
        members.append(Member(make(config | settings | own), topic))

    try:
        yield topic, members, join
    finally:
        for member in members:
            member.stop()


def prioritized(config: dict[str, Any]) -> PriorityConsumer:
    return PriorityConsumer({**config, "max.poll.records": 70})


@pytest.mark.quick("None-prioritized")
@pytest.mark.parametrize("make", [prioritized, ParallelConsumer])
@pytest.mark.parametrize("client_id", [None, "billing"])
def test_a_member_has_the_same_partitions_of_all_levels_whoever_joins_and_leaves(
    kafka_cluster: Cluster, make: Callable[[dict[str, Any]], Any], client_id: str | None
) -> None:
    own = {"client.id": client_id} if client_id else {}
    timing = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000}
    with group_of(kafka_cluster, make, **timing, **own) as (topic, members, join):
        for number in range(3):
            join(number)
            wait_until_shared(members, topic, kafka_cluster)
        members.pop(0).stop()
        wait_until_shared(members, topic, kafka_cluster)
        join(3)
        wait_until_shared(members, topic, kafka_cluster)


@pytest.mark.slow
def test_with_kip_848_and_range_a_group_instance_id_gives_each_member_the_same_partitions_of_all_levels(
    kafka_cluster: Cluster,
) -> None:
    with group_of(kafka_cluster, prioritized, **PROTOCOL_OF_848) as (topic, members, join):
        for number in range(3):
            join(number)
            wait_until_shared(members, topic, kafka_cluster)


def test_the_users_client_id_is_the_beginning_of_the_members_and_a_static_member_keeps_it(
    kafka_cluster: Cluster,
) -> None:
    admin = AdminClient(kafka_cluster.config({"log_level": 0}))
    for settings, expected in (({}, "billing-"), ({"group.instance.id": "m"}, "billing")):
        own = {"client.id": "billing", **settings}
        with group_of(kafka_cluster, prioritized, **own) as (topic, members, join):
            join(0)
            wait_until_shared(members, topic, kafka_cluster)
            group = level_group(topic, 0)
            [member] = admin.describe_consumer_groups([group])[group].result(30).members
            if settings:
                assert member.client_id == expected
            else:
                assert member.client_id.startswith(expected)
                assert len(member.client_id) == len(expected) + 12
