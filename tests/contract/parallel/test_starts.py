"""Partitions begin though the coordinator takes long to say what is committed, or may not say it of a neighbour."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import confluent_kafka as ck
import pytest

from headway import Context, ParallelConsumer, PriorityConsumer
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.kafka.binding import capi
from headway.records.record_types import ConsumerRecord
from tests.contract.conftest import Cluster
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.contract.parallel.members import client_of, settings_of, topic_of, wait_for
from tests.kafka_proxy import KafkaProxy

OFFSET_FETCH = 9
PARTITIONS = range(4)


def store_in_each_partition(config: dict[str, Any], topic: str, count: int) -> None:
    with closing(ck.Producer({"log_level": 0, **config})) as producer:
        for number in range(count * len(PARTITIONS)):
            producer.produce(topic, b"v", partition=number % len(PARTITIONS))
        assert producer.flush(30) == 0


@contextmanager
def reading(kind: str, config: dict[str, Any], topic: str) -> Iterator[Counter[int]]:
    """How many records of each partition a consumer has returned or handled until now.

    Its group in Kafka is the one named like the topic, of which a priority consumer reads one level.
    """
    read = Counter[int]()
    if kind == "parallel":
        with ParallelConsumer(config) as parallel:
            parallel.subscribe(topic)

            def note(record: ConsumerRecord, context: Context) -> None:
                read[record.partition] += 1

            running = threading.Thread(target=parallel.run, args=(note,))
            running.start()
            yield read
            parallel.stop()
            running.join()
        return
    ended, name = threading.Event(), topic.removesuffix("-0")
    with PriorityConsumer(config | {"levels": 1, "group.id": name}) as consumer:
        consumer.subscribe(name)

        def poll() -> None:
            while not ended.is_set():
                read.update(record.partition for record in consumer.poll(0.1))

        polling = threading.Thread(target=poll)
        polling.start()
        yield read
        ended.set()
        polling.join()


KINDS = pytest.mark.parametrize("kind", ["parallel", "priority"])


@pytest.mark.kafka
@KINDS
def test_a_coordinator_that_takes_long_is_asked_once_and_named_and_all_is_read(
    kafka_cluster: Cluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"{kafka_cluster.topic(1)}-0"
    store_in_each_partition(kafka_cluster.config({}), topic, 10)
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy, caplog.at_level(logging.WARNING):
        proxy.pauses[OFFSET_FETCH] = 1.3
        config = settings_of(topic) | {"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0}
        with reading(kind, config, topic) as read:
            wait_for(lambda: read == dict.fromkeys(PARTITIONS, 10))
        assert len(proxy.of(OFFSET_FETCH)) <= 2
    assert f"The coordinator of the group {topic} is slow" in caplog.text


def test_partitions_begin_after_an_unexpected_error_which_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask, errors = capi.committed_each, [RuntimeError("unexpected")]

    def fail_at_first(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return ask(*args)

    monkeypatch.setattr("headway.kafka.consumer.start_questions.committed_each", fail_at_first)
    with mock_brokers() as brokers, caplog.at_level(logging.ERROR):
        brokers.create("orders-0")
        config = settings_of("orders-0") | {"bootstrap.servers": brokers.bootstrap_servers}
        store_in_each_partition({"bootstrap.servers": brokers.bootstrap_servers}, "orders-0", 1)
        with reading("priority", config, "orders-0") as read:
            wait_for(lambda: read == dict.fromkeys(PARTITIONS, 1))
    assert "The look-up of start offsets raised an unexpected error" in caplog.text


@pytest.mark.kafka
@KINDS
def test_a_partition_whose_offset_is_in_an_open_transaction_holds_up_no_other(
    kafka_cluster: Cluster, kind: str
) -> None:
    topic = f"{kafka_cluster.topic(1)}-0"
    store_in_each_partition(kafka_cluster.config({}), topic, 10)
    own = kafka_cluster.config({"log_level": 0, "transactional.id": topic})
    with closing(ck.Producer(own | {"log_level": 0})) as dying, client_of(kafka_cluster, topic) as client:
        dying.init_transactions(30)
        dying.begin_transaction()
        dying.send_offsets_to_transaction([ck.TopicPartition(topic, 0, 4)], client.consumer_group_metadata(), 30)
        with reading(kind, kafka_cluster.config(settings_of(topic)), topic) as read:
            wait_for(lambda: [read[partition] for partition in (1, 2, 3)] == [10, 10, 10], seconds=20)
            assert read[0] == 0
            dying.commit_transaction(30)
            wait_for(lambda: read[0] == 6)


@pytest.mark.slow
def test_a_leader_that_takes_longer_than_the_limit_of_a_question_is_waited_for_longer_the_next_time() -> None:
    with mock_brokers() as brokers:
        leaders = brokers.create("orders")
        config = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0}
        store_in_each_partition(config, "orders", 10)
        group = config | {"group.id": "g", "auto.offset.reset": "earliest"}
        done_above_a_gap = encode(OffsetMap(0, (1, 2))).encode()
        with closing(ck.Consumer(group | {"log_level": 0})) as client:
            offsets = {("orders", partition): (0, done_above_a_gap) for partition in PARTITIONS}
            assert capi.PendingCommit(client, offsets).refused(30) == {}
        with made_slow(brokers, leaders), reading("parallel", group, "orders") as read:
            wait_for(lambda: read == dict.fromkeys(PARTITIONS, 8), seconds=60)


@contextmanager
def made_slow(brokers: MockBrokers, leaders: dict[int, int]) -> Iterator[None]:
    for broker in set(leaders.values()):
        brokers.answer_after(broker, 1100)
    yield
    for broker in set(leaders.values()):
        brokers.answer_after(broker, 0)


@pytest.mark.kafka
def test_a_seek_to_a_place_that_kafka_takes_long_to_tell_is_carried_out(kafka_cluster: Cluster) -> None:
    list_offsets = 2
    topic = topic_of(kafka_cluster, 1)
    with closing(ck.Producer(kafka_cluster.config({"log_level": 0}))) as producer:
        for _ in range(10):
            producer.produce(topic, b"v", partition=0)
        assert producer.flush(30) == 0
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        config = settings_of(topic) | {"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0}
        handled = list[int]()
        with ParallelConsumer(config) as parallel:
            parallel.subscribe(topic)
            running = threading.Thread(target=parallel.run, args=(lambda record: handled.append(record.offset),))
            running.start()
            wait_for(lambda: len(handled) == 10)
            proxy.pauses[list_offsets] = 1.3
            parallel.seek_to_beginning()
            wait_for(lambda: len(handled) == 20)
            parallel.stop()
            running.join()
        assert handled == [*range(10)] * 2


@pytest.mark.kafka
def test_a_coordinator_that_takes_longer_for_a_commit_than_it_is_given_is_waited_for_longer(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset_commit = 8
    monkeypatch.setattr("headway.parallel.commits.COMMIT_ANSWERED_WITHIN", 0.3)
    topic = topic_of(kafka_cluster, 1)
    with closing(ck.Producer(kafka_cluster.config({"log_level": 0}))) as producer:
        producer.produce(topic, b"v", partition=0)
        assert producer.flush(30) == 0
    outcomes = list[Any]()
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        config = settings_of(topic, **{"auto.commit.interval.ms": 100})
        with ParallelConsumer(config | {"bootstrap.servers": proxy.bootstrap_servers, "log_level": 0}) as parallel:
            parallel.subscribe(topic, on_commit=lambda error, offsets: outcomes.append(error))
            proxy.pauses[offset_commit] = 1.0
            running = threading.Thread(target=parallel.run, args=(lambda record: None,))
            running.start()
            wait_for(lambda: None in outcomes)
            parallel.stop()
            running.join()
    assert outcomes[0] is not None


@pytest.mark.slow
@pytest.mark.kafka
def test_a_transaction_that_stays_open_in_the_input_is_named_with_partition_and_offset(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.kafka.consumer.open_transactions.LOOK_EVERY", 0.2, raising=False)
    topic = f"{kafka_cluster.topic(1)}-0"
    store_in_each_partition(kafka_cluster.config({}), topic, 10)
    with closing(ck.Producer(kafka_cluster.config({"log_level": 0, "transactional.id": topic}))) as hanging:
        hanging.init_transactions(30)
        hanging.begin_transaction()
        hanging.produce(topic, b"v", partition=2)
        assert hanging.flush(30) == 0
        with reading("parallel", kafka_cluster.config(settings_of(topic)), topic) as read:
            wait_for(lambda: read == dict.fromkeys(PARTITIONS, 10))
            wait_for(lambda: "Nothing can be read from" in caplog.text, seconds=60)
            hanging.commit_transaction(30)
            wait_for(lambda: read[2] == 11)
    [told] = [message for message in caplog.messages if "Nothing can be read from" in message]
    assert f"partition 2 of {topic}" in told
    assert "from offset 10 on" in told
