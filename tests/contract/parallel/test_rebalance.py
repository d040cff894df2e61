"""Members of a parallel group that come and go, on a real Apache Kafka."""

import logging
import threading
from collections import defaultdict
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import Member, consumer, plain_topic, send, topic_of, wait_for

EAGER = {"partition.assignment.strategy": "range"}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER_PROTOCOL = {"group.protocol": "consumer", "heartbeat.interval.ms": None, "session.timeout.ms": None}

pytestmark = pytest.mark.kafka


@pytest.mark.quick("kip848")
@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE, CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
def test_members_joining_and_leaving_under_load_lose_nothing_and_keep_the_order_of_each_key(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic, least = plain_topic(kafka_cluster), 20_000
    handled: dict[bytes, list[int]] = defaultdict(list)
    settled = threading.Event()
    sent = 0

    def total() -> int:
        return sum(map(len, list(handled.values())))

    def feed() -> None:  # so that there is a backlog until all have come and gone
        nonlocal sent
        with closing(
            ck.Producer(kafka_cluster.config({"log_level": 0, "linger.ms": 5, "enable.idempotence": True}))
        ) as producer:
            while sent < least or not settled.is_set():
                for i in range(sent, sent + 500):
                    producer.produce(topic, str(i), f"key-{i % 500}")
                producer.flush(30)
                sent += 500
                while total() < sent - 4000 and not settled.is_set():
                    threading.Event().wait(0.01)

    def handle(record: ConsumerRecord, context: Context) -> None:
        threading.Event().wait(0.001)
        handled[record.key].append(int(record.value))

    def join() -> Member:
        return Member(consumer(kafka_cluster, topic, {"max_concurrency": 8}, **settings), handle)

    def joined() -> bool:
        return all(member.consumer.work_remaining for member in everyone)

    everyone = [join()]
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        for _ in range(2):
            wait_for(joined)
            everyone.append(join())
        wait_for(joined)
        everyone.pop(0).stop()
        wait_for(joined)
        settled.set()
        feeder.join(30)
        wait_for(lambda: total() >= sent)
    finally:
        settled.set()
        for member in everyone:
            member.stop()
        feeder.join(60)
    assert total() == sent  # what ran when a partition left was waited for, and nothing ran twice
    assert all(offsets == sorted(offsets) for offsets in handled.values())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [EAGER, CONSUMER_PROTOCOL], ids=["eager", "kip848"])
def test_a_rebalance_goes_through_while_all_slots_are_busy(kafka_cluster: Cluster, settings: dict[str, Any]) -> None:
    topic = plain_topic(kafka_cluster)
    for partition in range(4):
        send(kafka_cluster, topic, [(f"{i}", "v") for i in range(50)], partition)
    busy, go_on = threading.Semaphore(0), threading.Event()
    elsewhere: set[int] = set()

    def block(record: ConsumerRecord, context: Context) -> None:
        busy.release()
        go_on.wait(60)

    options = {"max_concurrency": 4, "hand_over_timeout": 0.2}
    first = Member(consumer(kafka_cluster, topic, options, **settings), block)
    try:
        assert all(busy.acquire(timeout=30) for _ in range(4))
        second = Member(
            consumer(kafka_cluster, topic, options, **settings),
            lambda record, context: elsewhere.add(record.partition),
        )
        try:
            wait_for(lambda: len(elsewhere) == 2)
            wait_for(lambda: len(first.consumer.assignment()) == 2)
        finally:
            second.stop()
    finally:
        go_on.set()
        first.stop()


@pytest.mark.slow
def test_the_log_says_which_partitions_a_member_has_once_they_have_settled(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(kafka_cluster, 2)
    caplog.set_level(logging.INFO, "headway")

    def told() -> list[str]:
        about = [record.getMessage() for record in caplog.records if record.name.endswith("assignment_log")]
        return [sentence.removeprefix("This member has joined its group and has ") for sentence in about]

    members = [Member(consumer(kafka_cluster, topic), lambda record, context: None)]
    try:
        wait_for(lambda: told() == [f"these partitions: {topic}: 0-1."])
        members += [Member(consumer(kafka_cluster, topic), lambda record, context: None) for _ in range(2)]
        settled = {
            f"these partitions: {topic}: 0.",
            f"these partitions: {topic}: 1.",
            "no partitions. Either all partitions are assigned to other members, or the topics do not exist.",
        }
        wait_for(lambda: settled <= set(told()[1:]))
    finally:
        for member in members:
            member.stop()
