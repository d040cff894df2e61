"""A topic that is deleted and created again is another topic: offsets of the old one say nothing about the new one."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaException, NewTopic

from headway import ConsumerRecord, PriorityConsumer, ProducerRecord, TopicPartition
from headway.broker import LocalBroker
from headway.errors import FetchError
from headway.kafka.reading.control_topic import listening
from headway.kafka.reading.tail import TailReader
from tests.contract.conftest import Cluster, cluster_of
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    COOPERATIVE,
    OFTEN,
    Member,
    Settings,
    committed,
    consumer,
    send,
    settings_of,
    topic_of,
    wait_for,
)

PROTOCOLS: dict[str, Settings] = {"classic": {}, "cooperative": COOPERATIVE, "consumer": CONSUMER_PROTOCOL}
OF_EACH_PROTOCOL = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member looks at its topics more often than it does for users."""
    monkeypatch.setattr("headway.kafka.reading.topic_ids.LOOK_EVERY", 0.3)


def delete(cluster: Cluster, topic: str) -> None:
    admin = AdminClient(cluster.config({"log_level": 0}))  # the answer ends with its client
    admin.delete_topics([topic])[topic].result(30)
    cluster.forget_topics()


def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Create a topic as soon as the one that was deleted is gone."""
    admin = AdminClient(cluster.config({"log_level": 0}))

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        except KafkaException as error:
            if "already exists" not in str(error):
                raise
            return False
        return True

    wait_for(is_created)


def text_of(record: ConsumerRecord) -> str:
    return (record.raw_value or b"").decode()


def values(prefix: str, count: int) -> list[tuple[str | None, str]]:
    return [(f"key-{number % 7}", f"{prefix} {number}") for number in range(count)]


def priority_consumer(cluster: Cluster, topic: str, **settings: Any) -> PriorityConsumer:
    own = settings_of(topic, **{"levels": 1, "max.poll.records": 50, "auto.commit.interval.ms": 200, **settings})
    parsed = cluster.config(own)
    reader = PriorityConsumer(parsed)
    reader.subscribe({topic: 0})
    return reader


def poll_until(reader: PriorityConsumer, is_enough: Callable[[list[str]], bool]) -> list[str]:
    seen: list[str] = []
    deadline = time.monotonic() + 60
    while not is_enough(seen):
        assert time.monotonic() < deadline, seen[-1:]
        try:
            seen += [text_of(record) for record in reader.poll(0.2)]
        except FetchError:  # the topic is away
            continue
    return seen


@OF_EACH_PROTOCOL
def test_positions_and_commits_are_those_of_the_new_topic(kafka_cluster: Cluster, protocol: str) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, values("old", 100))
    with closing(priority_consumer(kafka_cluster, topic, **PROTOCOLS[protocol])) as reader:
        poll_until(reader, lambda seen: len(seen) == 100)
        delete(kafka_cluster, topic)
        create(kafka_cluster, topic)
        send(kafka_cluster, topic, values("new", 30))
        poll_until(reader, lambda seen: "new 29" in seen)
        assert reader.position(TopicPartition(topic, partition=0, level=0)) == 30
        reader.pause()
        reader.resume()
        reader.commit()
    with closing(priority_consumer(kafka_cluster, topic)) as reader:
        send(kafka_cluster, topic, [(None, "last")])
        assert poll_until(reader, lambda seen: "last" in seen) == ["last"]


@OF_EACH_PROTOCOL
def test_no_record_of_the_new_topic_is_passed_over_though_it_has_the_old_offset(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    topic = topic_of(kafka_cluster, 2)
    send(kafka_cluster, topic, values("old", 100))
    seen: set[str] = set()
    member = Member(
        consumer(kafka_cluster, topic, **OFTEN | PROTOCOLS[protocol]),
        lambda record, _: seen.add(text_of(record)),
    )
    try:
        wait_for(lambda: len(seen) == 100)
        wait_for(lambda: sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == 100)
        delete(kafka_cluster, topic)
        create(kafka_cluster, topic, 2)
        send(kafka_cluster, topic, values("new", 1000))
        wait_for(lambda: {f"new {number}" for number in range(1000)} <= seen, 60)
        wait_for(lambda: sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == 1000)
    finally:
        member.stop()
    assert f"{topic} was deleted and created again" in caplog.text


def test_a_transaction_does_not_put_the_old_position_over_the_new_topic(kafka_cluster: Cluster) -> None:
    topic, results = topic_of(kafka_cluster, 1), topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, values("old", 10))
    parallel = consumer(kafka_cluster, topic, {"commit_mode": "transactional"}, **OFTEN)
    seen: set[str] = set()

    def run() -> None:
        def handle(record: ConsumerRecord) -> ProducerRecord:
            seen.add(text_of(record))
            return ProducerRecord(results, record.raw_value)

        parallel.run_and_produce(handle)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: committed(kafka_cluster, topic).get(0, (0, b""))[0] == 10)
        delete(kafka_cluster, topic)
        create(kafka_cluster, topic)
        send(kafka_cluster, topic, values("new", 300))
        wait_for(lambda: {f"new {number}" for number in range(300)} <= seen, 60)
        wait_for(lambda: committed(kafka_cluster, topic).get(0, (0, b""))[0] == 300)
    finally:
        parallel.close()
        thread.join(30)


@OF_EACH_PROTOCOL
def test_a_member_that_leaves_before_it_looks_again_does_not_commit_the_old_position(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr("headway.kafka.reading.topic_ids.LOOK_EVERY", 3600)
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, values("old", 100))
    with closing(priority_consumer(kafka_cluster, topic, **PROTOCOLS[protocol])) as reader:
        poll_until(reader, lambda seen: len(seen) == 100)
        delete(kafka_cluster, topic)
        create(kafka_cluster, topic)
        send(kafka_cluster, topic, values("new", 150))
    with closing(priority_consumer(kafka_cluster, topic)) as reader:
        assert poll_until(reader, lambda seen: "new 149" in seen)[0] == "new 0"


def test_a_topic_that_is_deleted_is_named_within_seconds(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, values("old", 10))
    seen: list[str] = []
    member = Member(consumer(kafka_cluster, topic), lambda record, _: seen.append(text_of(record)))
    try:
        wait_for(lambda: len(seen) == 10)
        with caplog.at_level(logging.WARNING):
            delete(kafka_cluster, topic)
            wait_for(lambda: f"The topic {topic} was deleted" in caplog.text)
            create(kafka_cluster, topic)
            send(kafka_cluster, topic, values("new", 10))
            wait_for(lambda: len(seen) == 20)
    finally:
        member.stop()
    assert caplog.text.count(f"The topic {topic} was deleted") == 1


@pytest.fixture
def own_broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.mark.slow
@OF_EACH_PROTOCOL
def test_a_new_topic_with_a_lower_leader_epoch_is_read(own_broker: LocalBroker, protocol: str) -> None:
    cluster = cluster_of(own_broker)
    topic = topic_of(cluster, 1)
    send(cluster, topic, values("old", 50))
    own_broker.nodes[0].stop()
    own_broker.nodes[0].start()
    seen: set[str] = set()
    member = Member(consumer(cluster, topic, **PROTOCOLS[protocol]), lambda record, _: seen.add(text_of(record)))
    try:
        wait_for(lambda: len(seen) == 50, 60)
        delete(cluster, topic)
        create(cluster, topic)
        send(cluster, topic, values("new", 50))
        wait_for(lambda: len(seen) == 100, 60)
    finally:
        member.stop()


@contextmanager
def listens_for_answers(cluster: Cluster, topic: str, heard: list[str]) -> Iterator[None]:
    reader = TailReader(cluster.config({}), topic, 0, lambda _, value: heard.append(value.decode()), print)
    with closing(reader):
        yield


def listens_for_messages(cluster: Cluster, topic: str, heard: list[str]) -> AbstractContextManager[None]:
    return listening(cluster.config({}), topic, 0, "run", lambda value: heard.append(value.decode()))


@pytest.mark.parametrize("listens", [listens_for_answers, listens_for_messages])
def test_a_listener_goes_on_at_the_beginning_of_a_topic_that_was_created_again(
    kafka_cluster: Cluster, listens: Callable[..., AbstractContextManager[None]]
) -> None:
    topic = topic_of(kafka_cluster, 1)
    heard: list[str] = []
    with listens(kafka_cluster, topic, heard):
        send(kafka_cluster, topic, [("run", f"old {number}") for number in range(100)])
        wait_for(lambda: "old 99" in heard)
        delete(kafka_cluster, topic)
        create(kafka_cluster, topic)
        send(kafka_cluster, topic, [("run", f"new {number}") for number in range(200)])
        wait_for(lambda: {f"new {number}" for number in range(200)} <= set(heard))
