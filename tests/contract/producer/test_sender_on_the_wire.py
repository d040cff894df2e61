"""What the producer puts on the wire, seen by a proxy before a real Apache Kafka."""

import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Producer
from headway.kafka.producer.delivery import DeliveryFuture
from tests.contract.conftest import Cluster
from tests.kafka_proxy import METADATA, PRODUCE, KafkaProxy

MEBIBYTE = 1024 * 1024


@pytest.fixture
def proxy(kafka_cluster: Cluster) -> Iterator[KafkaProxy]:
    with KafkaProxy(kafka_cluster.bootstrap_servers, round_trip=0.02) as proxy:
        yield proxy


def test_several_requests_are_under_way_at_once_and_a_partition_keeps_its_order_without_retries(
    kafka_cluster: Cluster, proxy: KafkaProxy
) -> None:
    topic = kafka_cluster.topic(1) + "-0"
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 1, "retries": 0, "acks": "all"}
    with Producer(settings) as producer:
        producer.send(topic, b"first", partition=0).result(30)
        futures: list[DeliveryFuture] = []
        while proxy.most_at_once(PRODUCE) < 3:
            futures.append(producer.send(topic, b"x", partition=0))
            threading.Event().wait(0.001)  # as a stream: what is sent in one breath is one request
        assert [future.result(30).offset for future in futures] == list(range(1, len(futures) + 1))


@pytest.mark.slow
def test_topics_that_nobody_knows_hold_back_none_that_are_known(kafka_cluster: Cluster, proxy: KafkaProxy) -> None:
    topic = kafka_cluster.topic(1) + "-0"
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0, "allow.auto.create.topics": False}
    producer = Producer(settings)
    try:
        producer.send(topic, b"first").result(30)
        unknown = [producer.send(f"{topic}-{number}", b"x", on_delivery=lambda *_: None) for number in range(20)]
        took: list[float] = []
        for _ in range(20):
            started = time.monotonic()
            producer.send(topic, b"x").result(30)
            took.append(time.monotonic() - started)
        assert len(proxy.of(METADATA)) > 2
        assert not any(future.done() for future in unknown)
        assert sorted(took)[-3] < 1.0  # a pause of the machine holds up one or two
    finally:
        producer.close(0)


def test_a_trickle_over_many_partitions_does_not_become_a_request_for_each(
    kafka_cluster: Cluster, proxy: KafkaProxy
) -> None:
    topic = kafka_cluster.topic(1)
    admin = AdminClient({"log_level": 0, "bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 125, 1)])[topic].result(30)
    with Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 20}) as producer:
        producer.send(topic, b"first").result(30)
        before, began = len(proxy.of(PRODUCE)), time.monotonic()
        for _ in range(100):
            for _ in range(10):
                producer.send(topic, b"x" * 100)
            threading.Event().wait(0.005)
        assert producer.flush(30) == 0
        lingers = (time.monotonic() - began) / 0.02
    assert len(proxy.of(PRODUCE)) - before < 30 + 1.5 * lingers


def test_a_flood_fails_no_send_of_another_topic(kafka_cluster: Cluster, proxy: KafkaProxy) -> None:
    flooded, audit = kafka_cluster.topic(2), kafka_cluster.topic(2)
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "levels": 2, "linger.ms": 1}
    ended = threading.Event()
    with Producer(settings | {"buffer.memory": 8 * MEBIBYTE}) as producer:
        for each in (flooded, audit):
            producer.send(each, b"first").result(30)

        def flood() -> None:
            while not ended.is_set():
                producer.send(flooded, b"x" * 1000)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            sent = list[DeliveryFuture | None]()
            for _ in range(200):
                sent += [producer.try_send(audit, b"x" * 100), producer.try_send(flooded, b"x" * 100, level=1)]
                threading.Event().wait(0.005)
        finally:
            ended.set()
            thread.join()
        assert None not in sent
        assert all(future is not None and future.exception(30) is None for future in sent)


@pytest.mark.slow
def test_a_keyed_flood_over_many_partitions_that_makes_way_for_a_neighbour_keeps_the_order_of_each_key(
    kafka_cluster: Cluster, proxy: KafkaProxy
) -> None:
    flooded, quiet = kafka_cluster.topic(1), kafka_cluster.topic(1) + "-0"
    admin = AdminClient({"log_level": 0, "bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(flooded, 24, 1)])[flooded].result(30)
    keys = [b"%d" % number for number in range(200)]
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 1, "enable.idempotence": True}
    ended, flood_of = threading.Event(), list[tuple[bytes, DeliveryFuture]]()
    with Producer(settings) as producer:
        for topic in (flooded, quiet):
            producer.send(topic, b"first").result(30)
        queues = producer.destination(flooded, None).queues

        def flood() -> None:
            while not ended.is_set():
                flood_of.extend((key, producer.send(flooded, b"x" * 1000, key)) for key in keys)

        thread = threading.Thread(target=flood)
        thread.start()
        sent, made_way, until = list[DeliveryFuture | None](), 0, time.monotonic() + 30
        try:
            while made_way < 100 and time.monotonic() < until:
                sent.append(producer.try_send(quiet, b"x" * 100))
                threading.Event().wait(0.005)
                made_way += queues.waiting > 0 and any(queue.narrowed for queue in queues.queues())
        finally:
            ended.set()
            thread.join()
        assert made_way == 100
        assert None not in sent
        assert producer.flush(60) == 0
    placed: dict[bytes, list[tuple[int, int]]] = {}
    for key, future in flood_of:
        placed.setdefault(key, []).append((future.result().partition, future.result().offset))
    for places in placed.values():
        assert len({partition for partition, _ in places}) == 1
        assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_broker_that_does_not_answer_leaves_memory_at_the_budget_and_loses_nothing(
    kafka_cluster: Cluster, proxy: KafkaProxy, seconds: int
) -> None:
    topic = kafka_cluster.topic(1) + "-0"
    process = psutil.Process()
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "buffer.memory": 32 * MEBIBYTE, "linger.ms": 1}
    with Producer({**settings, "socket.timeout.ms": 120_000}) as producer:
        producer.send(topic, b"first", partition=0).result(30)
        proxy.hold(PRODUCE)
        before, accepted, most = process.memory_info().rss, list[DeliveryFuture](), 0
        ended = time.monotonic() + seconds
        while time.monotonic() < ended:
            future = producer.try_send(topic, b"%d" % len(accepted) + b"x" * 1000, partition=0)
            if future is not None:
                accepted.append(future)
            else:
                most = max(most, process.memory_info().rss)
                threading.Event().wait(0.01)
        proxy.hold()
        assert len(accepted) > 10_000
        assert most - before < 2 * 32 * MEBIBYTE
        assert [future.result(60).offset for future in accepted] == list(range(1, len(accepted) + 1))
