"""Commits that Kafka refuses or does not answer: of one level, in transactions or not, and while partitions leave."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ConsumerRecord, Context, Producer, ProducerRecord
from headway.broker import LocalBroker
from headway.errors import KafkaError
from headway.kafka.binding import capi
from headway.kafka.producer.client_transactions import ClientTransactions
from headway.parallel.fetching import Fetching
from headway.records.record_types import TopicPartition
from tests.broker.delay_cluster import MISSED_SOON
from tests.contract.conftest import Cluster, cluster_of
from tests.contract.parallel.members import client_of, committed, plain_topic, send, wait_for
from tests.contract.parallel.test_rebalance import COOPERATIVE, EAGER
from tests.contract.parallel.test_transactions import Running, member, reader, twice
from tests.kafka_proxy import KafkaProxy
from tests.membership import expel

pytestmark = pytest.mark.kafka

PRODUCE, ADD_OFFSETS, END_TRANSACTION, TXN_OFFSET_COMMIT = 0, 25, 26, 28

# Who is expelled hears nothing of it from heartbeats for the time of a test.
HEARS_NOTHING = {"heartbeat.interval.ms": 30_000, "session.timeout.ms": 60_000}


@contextmanager
def two_levels(
    cluster: Cluster, topic: str, out: str, options: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Running]:
    """A running member of both levels' groups."""
    running = Running(member(cluster, topic, options, **{"levels": 2} | HEARS_NOTHING | settings), twice(out))
    try:
        yield running
    finally:
        running.consumer.close(drain=False)


def send_to_both(cluster: Cluster, topic: str, values: range) -> None:
    with Producer(cluster.config({"levels": 2, "linger.ms": 0})) as producer:
        for i in values:
            producer.send(topic, str(i), key=str(i), level=i % 2)


def done(cluster: Cluster, topic: str, level: int) -> int:
    """How many records of a level are committed as done."""
    return sum(offset for offset, _ in committed(cluster, f"{topic}-{level}").values())


# Of one level


@pytest.mark.parametrize(
    "settings",
    [pytest.param(EAGER, id="eager"), pytest.param(COOPERATIVE, id="cooperative", marks=pytest.mark.slow)],
)
def test_a_level_that_was_expelled_unheard_keeps_no_other_from_its_transactions_and_is_read_on(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic, out = kafka_cluster.topic(2), plain_topic(kafka_cluster)
    with two_levels(kafka_cluster, topic, out, **settings):
        send_to_both(kafka_cluster, topic, range(10))
        wait_for(lambda: done(kafka_cluster, topic, 0) == done(kafka_cluster, topic, 1) == 5)
        expel(kafka_cluster.config({}), f"{topic}-0")
        send_to_both(kafka_cluster, topic, range(10, 40))
        wait_for(lambda: done(kafka_cluster, topic, 1) == 20, 10)
        wait_for(lambda: done(kafka_cluster, topic, 0) == 20, 12)
        with reader(kafka_cluster, out) as found:
            wait_for(lambda: len(found.values) >= 80)  # the coordinator writes a transaction's end some time later
            assert Counter(found.values) == Counter(f"{i}/{part}" for i in range(40) for part in "ab")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_level_that_was_expelled_unheard_joins_again_when_a_commit_tells(kafka_cluster: Cluster, mode: str) -> None:
    topic, out = kafka_cluster.topic(2), plain_topic(kafka_cluster)
    with two_levels(kafka_cluster, topic, out, {"commit_mode": mode}):
        send_to_both(kafka_cluster, topic, range(10))
        wait_for(lambda: done(kafka_cluster, topic, 0) == done(kafka_cluster, topic, 1) == 5)
        expel(kafka_cluster.config({}), f"{topic}-0")
        send_to_both(kafka_cluster, topic, range(10, 40))
        wait_for(lambda: done(kafka_cluster, topic, 1) == 20, 10)
        wait_for(lambda: done(kafka_cluster, topic, 0) == 20, 12)


@pytest.mark.slow
def test_outputs_that_cannot_be_committed_count_against_the_memory(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out, count, size = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 200, 500_000
    send(kafka_cluster, topic, [(str(i), str(i)) for i in range(count)])
    whole, away = ClientTransactions.send_offsets, threading.Event()
    away.set()

    def refused(client: ClientTransactions, *args: Any) -> None:
        if away.is_set():
            raise KafkaError("Not now.")
        whole(client, *args)

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        return ProducerRecord(out, record.value.ljust(size), record.key)

    monkeypatch.setattr(ClientTransactions, "send_offsets", refused)
    running = Running(member(kafka_cluster, topic), handle)
    try:
        wait_for(lambda: (about := running.consumer.metrics()).done > 20 and about.ready and not about.running)
        assert running.consumer.metrics().done < 100  # 64 MiB for each level: an output is here and in librdkafka
        away.clear()
        wait_for(lambda: sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count)
    finally:
        running.stop()
    with reader(kafka_cluster, out) as found:
        wait_for(lambda: len(found.values) >= count)
        assert sorted(int(value) for value in found.values) == list(range(count))


@pytest.mark.slow
def test_tens_of_thousands_of_outputs_do_not_pile_up_while_commits_fail_quickly(
    kafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, count, size = plain_topic(kafka_cluster), 60_000, 5_000
    send(kafka_cluster, topic, ((str(i), str(i)) for i in range(count)))
    refusals = Counter[str]()

    def refused(client: ClientTransactions, *args: Any) -> None:
        refusals["offsets"] += 1
        raise KafkaError("Not now.")

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        return ProducerRecord(topic, record.value.ljust(size), record.key)

    monkeypatch.setattr(ClientTransactions, "send_offsets", refused)
    before = psutil.Process().memory_info().rss
    running = Running(member(kafka_cluster, topic), handle)
    try:

        def stands_still() -> bool:
            about, refused_before = running.consumer.metrics(), refusals["offsets"]
            if about.done < 2000 or not about.ready or about.running:
                return False
            wait_for(lambda: refusals["offsets"] > refused_before + 2)
            return running.consumer.metrics().done == about.done

        wait_for(stands_still)
        assert running.consumer.metrics().done < 10_000  # 64 MiB, of which each takes twice its size
        assert psutil.Process().memory_info().rss - before < 200 * 2**20
    finally:
        running.consumer.close(drain=False)
        running.wait()


def test_the_offsets_of_one_that_is_no_member_are_not_committed(kafka_cluster: Cluster) -> None:
    """Kafka would take them in a transaction, and nothing would fence off who has lost its partitions."""
    with client_of(kafka_cluster, plain_topic(kafka_cluster)) as stranger:
        assert not capi.is_of_a_member(stranger.consumer_group_metadata())


# Hand-overs


@pytest.mark.slow
@pytest.mark.parametrize(
    "held",
    [
        pytest.param(PRODUCE, id="produce"),
        pytest.param(ADD_OFFSETS, id="add offsets", marks=pytest.mark.slow),
        pytest.param(TXN_OFFSET_COMMIT, id="commit offsets", marks=pytest.mark.slow),
        pytest.param(END_TRANSACTION, id="end"),
    ],
)
def test_a_hand_over_ends_in_its_time_though_a_transaction_gets_no_answer(kafka_cluster: Cluster, held: int) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 40
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy, reader(kafka_cluster, out) as found:
        behind = Cluster(proxy.bootstrap_servers, kafka_cluster.create_topics)
        first = Running(member(behind, topic, {"hand_over_timeout": 2.0}), twice(out))
        try:
            for partition in range(4):
                send(kafka_cluster, topic, [(f"{i}", f"{partition}.{i}") for i in range(5)], partition)
            wait_for(lambda: sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == 20)
            proxy.hold(held)
            for partition in range(4):
                send(kafka_cluster, topic, [(f"{i}", f"{partition}.{i}") for i in range(5, 10)], partition)
            wait_for(lambda: first.consumer.metrics().done == count)
            began = time.monotonic()
            second = Running(member(kafka_cluster, topic), twice(out))
            try:
                wait_for(lambda: len(first.consumer.assignment()) == 2, 20)
                assert time.monotonic() - began < 7  # 2, and the joining of two members
                proxy.hold()
                wait_for(lambda: len(found.values) >= 2 * count, 60)
            finally:
                second.stop()
        finally:
            proxy.hold()
            first.consumer.close(drain=False)
        expected = (f"{partition}.{i}/{part}" for partition in range(4) for i in range(10) for part in "ab")
        assert Counter(found.values) == Counter(expected)


@pytest.mark.slow
def test_hand_overs_end_in_their_time_while_a_broker_is_away_and_nothing_is_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took: list[float] = []
    whole = Fetching.revoked

    def measured(intake: Fetching, partitions: list[TopicPartition]) -> None:
        began = time.monotonic()
        whole(intake, partitions)
        took.append(time.monotonic() - began)

    monkeypatch.setattr(Fetching, "revoked", measured)
    with LocalBroker(nodes=3, properties=MISSED_SOON) as broker:
        cluster = cluster_of(broker)
        admin = AdminClient(cluster.config({"log_level": 0}))
        topic, out, count = "jobs", "out", 3000
        for created in admin.create_topics([NewTopic(topic, 6, 3), NewTopic(out, 3, 1)]).values():
            created.result(30)
        numbers = iter(range(count))
        send(cluster, topic, [(str(i), str(next(numbers))) for i in range(1000)])
        options = {"hand_over_timeout": 5.0}
        settings = {"session.timeout.ms": 10_000}
        members = [Running(member(cluster, topic, options, **settings), twice(out)) for _ in range(2)]
        try:
            for node in broker.nodes[1:]:  # each leads a partition of the outputs
                wait_for(lambda: all(len(each.consumer.assignment()) for each in members), 60)
                node.kill()
                send(cluster, topic, [(str(i), str(next(numbers))) for i in range(500)])
                members.append(Running(member(cluster, topic, options, **settings), twice(out)))
                wait_for(lambda: all(len(each.consumer.assignment()) for each in members), 60)
                node.start()
                send(cluster, topic, [(str(i), str(next(numbers))) for i in range(500)])
            with reader(cluster, out) as found:
                wait_for(lambda: len(found.values) >= 2 * count, 120)
                assert Counter(found.values) == Counter(f"{i}/{part}" for i in range(count) for part in "ab")
        finally:
            for each in members:
                each.consumer.close(drain=False)
    assert took
    assert max(took) < 5.0 + 1.5
