"""One group for all levels: one member reads them, in the group of just the given name, on a real Apache Kafka."""

import threading
import time
import uuid
from collections import Counter
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, ParallelConsumer, PriorityConsumer, Producer, ProducerRecord
from headway.core.levels.naming import level_topic
from headway.errors import ConfigError
from headway.kafka.reading.group_inspector import GroupInspector
from headway.records.record_types import TopicPartition
from tests.contract.conftest import LEVELS, PARTITIONS, Cluster

pytestmark = pytest.mark.kafka

ONE_GROUP = {"group.per.level": False}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
OF_848: dict[str, Any] = {"group.protocol": "consumer", "heartbeat.interval.ms": None, "session.timeout.ms": None}


def config_of(cluster: Cluster, group: str, **settings: Any) -> dict[str, Any]:
    config = cluster.consumer_config(group) | ONE_GROUP | settings
    return {key: value for key, value in config.items() if value is not None}


def parallel_config(cluster: Cluster, group: str, **settings: Any) -> dict[str, Any]:
    config = config_of(cluster, group, **{"auto.commit.interval.ms": 100, **settings})
    return {key: value for key, value in config.items() if key not in ("max.poll.records", "enable.auto.commit")}


def fill(cluster: Cluster, topic: str, count: int, level: int) -> None:
    with cluster.producer(**{"linger.ms": 5}) as producer:
        for number in range(count):
            producer.send(topic, str(number).encode(), str(number), level=level)


def read(consumer: PriorityConsumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + 30
    while len(records) < count:
        assert time.monotonic() < deadline, len(records)
        records += consumer.poll(0.1)
    return records


def commits(cluster: Cluster, group: str, topic: str, levels: int = LEVELS) -> dict[str, int]:
    """Return the sum of the offsets that the group has committed of each level topic."""
    client = ck.Consumer(cluster.config({"group.id": group, "log_level": 0}))
    names = [level_topic(topic, level) for level in range(levels)]
    asked = [ck.TopicPartition(name, number) for name in names for number in range(PARTITIONS)]
    try:
        found = client.committed(asked, 20)
    finally:
        client.close()
    return {name: sum(max(0, each.offset) for each in found if each.topic == name) for name in names}


def groups(cluster: Cluster, beginning: str) -> list[str]:
    with GroupInspector(cluster.config({}), beginning) as inspector:
        return [each for each in inspector.groups() if each.startswith(beginning)]


@pytest.mark.parametrize("settings", [{}, COOPERATIVE, OF_848], ids=["eager", "cooperative", "kip848"])
def test_commits_of_all_levels_are_in_the_group_of_just_the_given_name(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic()
    for level in range(LEVELS):
        fill(kafka_cluster, topic, 10 * (level + 1), level)
    with PriorityConsumer(config_of(kafka_cluster, topic, **settings), policy="fair") as consumer:
        consumer.subscribe(topic)
        records = read(consumer, 60)
        assert Counter(record.level for record in records) == {0: 10, 1: 20, 2: 30}
        assert {record.topic for record in records} == {topic}
        assert len(consumer.assignment()) == LEVELS * PARTITIONS
        assert [each.partitions for each in consumer.metrics()] == [PARTITIONS] * LEVELS
        assert [each.returned for each in consumer.metrics()] == [10, 20, 30]
        consumer.commit()
        assert groups(kafka_cluster, topic) == [topic]
    assert commits(kafka_cluster, topic, topic) == {f"{topic}-0": 10, f"{topic}-1": 20, f"{topic}-2": 30}
    with PriorityConsumer(config_of(kafka_cluster, topic, **settings), policy="fair") as again:
        again.subscribe(topic)
        fill(kafka_cluster, topic, 1, 1)
        assert [record.level for record in read(again, 1)] == [1]


@pytest.mark.quick("capacity_burst")
@pytest.mark.parametrize("policy", ["strict", "fair", "capacity_burst"])
def test_a_record_of_a_high_level_does_not_wait_behind_a_flood_of_a_low_one(
    kafka_cluster: Cluster, policy: Any
) -> None:
    topic = kafka_cluster.topic()
    fill(kafka_cluster, topic, 100_000, 0)
    passed: list[int] = []
    with (
        PriorityConsumer(config_of(kafka_cluster, topic), policy=policy) as consumer,
        kafka_cluster.producer() as producer,
    ):
        consumer.subscribe(topic)
        read(consumer, 3000)
        for _ in range(10):
            stored = producer.send(topic, b"urgent", "k", level=2)
            producer.flush()
            assert stored.result(10)
            of_low, came = 0, False
            deadline = time.monotonic() + 10
            while not came:
                assert time.monotonic() < deadline
                for record in consumer.poll(1):
                    came = came or record.level == 2
                    of_low += record.level == 0
            passed.append(of_low)
        assert consumer.metrics()[0].lag > 0  # the flood was there all the time
    # A fetch was on its way; tens of thousands would pass if it stood in line.
    assert sorted(passed)[5] < 6000, passed


class Member:
    """A parallel consumer of one group on a thread of its own, which notes what it handled."""

    def __init__(self, cluster: Cluster, topic: str, handled: Counter[tuple[int, int, int]], **settings: Any) -> None:
        self.consumer = ParallelConsumer(parallel_config(cluster, topic, **settings), max_concurrency=4)
        self.consumer.subscribe(topic)
        self._thread = threading.Thread(target=self._run, args=(handled,), daemon=True)
        self._thread.start()

    def _run(self, handled: Counter[tuple[int, int, int]]) -> None:
        self.consumer.run(lambda record: handled.update([(record.level, record.partition, record.offset)]))

    def share(self) -> list[set[int]]:
        assigned = self.consumer.assignment()
        return [{each.partition for each in assigned if each.level == level} for level in range(LEVELS)]

    def stop(self) -> None:
        self.consumer.close()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.consumer.failure is None


def wait_for(condition: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


@pytest.mark.quick("kip848")
@pytest.mark.parametrize("settings", [{}, OF_848 | {"group.remote.assignor": "range"}], ids=["eager", "kip848"])
def test_members_that_join_and_leave_have_the_same_partitions_of_all_levels_and_handle_each_record_once(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic()
    handled: Counter[tuple[int, int, int]] = Counter()
    sent = 0

    def send() -> None:
        nonlocal sent
        for level in range(LEVELS):
            fill(kafka_cluster, topic, 200, level)
        sent += 200 * LEVELS

    def is_shared(*members: Member) -> bool:
        shares = [member.share() for member in members]
        return all(len(of_level) == PARTITIONS // len(members) for share in shares for of_level in share)

    first = Member(kafka_cluster, topic, handled, **settings)
    second = None
    try:
        send()
        wait_for(lambda: is_shared(first))
        second = Member(kafka_cluster, topic, handled, **settings)
        send()
        wait_for(lambda: is_shared(first, second))
        assert all(share == [share[0]] * LEVELS for share in (first.share(), second.share()))
        send()
        second.stop()
        wait_for(lambda: is_shared(first))
        send()
        wait_for(lambda: len(handled) == sent)
    finally:
        first.stop()
        if second:
            second.stop()
    assert set(handled.values()) == {1}
    assert commits(kafka_cluster, topic, topic) == {level_topic(topic, level): 800 for level in range(LEVELS)}
    assert groups(kafka_cluster, topic) == [topic]


@pytest.mark.slow
def test_with_the_cooperative_protocol_members_that_join_and_leave_handle_each_record_once(
    kafka_cluster: Cluster,
) -> None:
    topic = kafka_cluster.topic()
    handled: Counter[tuple[int, int, int]] = Counter()
    members: list[Member] = []
    sent = 0

    def send() -> None:
        nonlocal sent
        for level in range(LEVELS):
            fill(kafka_cluster, topic, 100, level)
        sent += 100 * LEVELS

    def is_shared() -> bool:
        sizes = [len(member.consumer.assignment()) for member in members]
        return sum(sizes) == LEVELS * PARTITIONS and max(sizes) - min(sizes) <= 1

    try:
        for _ in range(3):
            members.append(Member(kafka_cluster, topic, handled, **COOPERATIVE))
            send()
            wait_for(is_shared)
        send()
        members.pop(0).stop()
        wait_for(is_shared)
        send()
        wait_for(lambda: len(handled) == sent)
    finally:
        for member in members:
            member.stop()
    assert set(handled.values()) == {1}
    assert sum(commits(kafka_cluster, topic, topic).values()) == sent


def test_a_level_is_paused_and_sought_while_records_of_all_are_handled_in_parallel(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    handled: Counter[tuple[int, int, int]] = Counter()
    member = Member(kafka_cluster, topic, handled)
    try:
        wait_for(lambda: len(member.consumer.assignment()) == LEVELS * PARTITIONS)
        member.consumer.pause(level=0)
        for level in range(LEVELS):
            fill(kafka_cluster, topic, 50, level)
        wait_for(lambda: len(handled) == 100)
        assert {level for level, _, _ in handled} == {1, 2}
        member.consumer.resume(level=0)
        wait_for(lambda: len(handled) == 150)
        member.consumer.seek_to_beginning([each for each in member.consumer.assignment() if each.level == 2])
        wait_for(lambda: sum(handled.values()) == 200)
    finally:
        member.stop()
    assert {level for (level, _, _), times in handled.items() if times == 2} == {2}


def test_in_transactions_the_outputs_and_the_offsets_of_all_levels_are_committed_in_the_one_group(
    kafka_cluster: Cluster,
) -> None:
    topic, out = kafka_cluster.topic(), f"out-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topics([out])
    for level in range(LEVELS):
        fill(kafka_cluster, topic, 50, level)
    consumer = ParallelConsumer(parallel_config(kafka_cluster, topic), commit_mode="transactional")
    done = 0

    def stop_at_last(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == 50 * LEVELS:
            consumer.stop()

    with consumer:
        consumer.subscribe(topic)
        consumer.run_and_produce(
            lambda record: ProducerRecord(out, f"{record.level}-{record.value.decode()}".encode()), stop_at_last
        )
    assert commits(kafka_cluster, topic, topic) == {level_topic(topic, level): 50 for level in range(LEVELS)}
    client = ck.Consumer(kafka_cluster.config({"group.id": out, "log_level": 0}))
    client.assign([ck.TopicPartition(out, number, 0) for number in range(PARTITIONS)])
    with closing(client):
        values: list[bytes] = []

        def has_all() -> bool:
            values.extend(each.value() or b"" for each in client.consume(500, 0.2))
            return len(values) >= 50 * LEVELS

        wait_for(has_all)
    assert Counter(values) == Counter(f"{level}-{i}".encode() for level in range(LEVELS) for i in range(50))


def test_a_transactional_producer_commits_the_offsets_of_all_levels_in_the_one_group(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    for level in range(LEVELS):
        fill(kafka_cluster, topic, 5, level)
    with (
        Producer(kafka_cluster.config({"levels": LEVELS, "transactional.id": topic})) as producer,
        PriorityConsumer(config_of(kafka_cluster, topic), policy="fair") as consumer,
    ):
        producer.init_transactions()
        consumer.subscribe(topic)
        read(consumer, 5 * LEVELS)
        producer.begin_transaction()
        producer.send_offsets(consumer)
        producer.commit_transaction()
    assert commits(kafka_cluster, topic, topic) == {level_topic(topic, level): 5 for level in range(LEVELS)}


def test_topics_under_their_own_names_keep_the_group_and_its_commits(kafka_cluster: Cluster) -> None:
    group = f"tasks-{uuid.uuid4().hex[:8]}"
    emails, reports = f"{group}-emails", f"{group}-reports"
    kafka_cluster.create_topics([emails, reports])
    plain = ck.Producer(kafka_cluster.config({"enable.idempotence": True, "log_level": 0}))
    for number in range(20):
        plain.produce(emails, str(number).encode(), partition=0)
        plain.produce(reports, str(number).encode(), partition=0)
    plain.flush(20)
    before = ck.Consumer(kafka_cluster.config({"group.id": group, "log_level": 0}))
    before.commit(offsets=[ck.TopicPartition(emails, 0, 15), ck.TopicPartition(reports, 0, 5)], asynchronous=False)
    before.close()
    with PriorityConsumer(config_of(kafka_cluster, group), policy="fair") as consumer:
        consumer.subscribe({emails: 2, reports: 0})
        records = read(consumer, 20)
        assert {(record.topic, record.level, record.offset) for record in records} == {
            *((emails, 2, offset) for offset in range(15, 20)),
            *((reports, 0, offset) for offset in range(5, 20)),
        }
        assert consumer.partitions_for(emails) == [TopicPartition(emails, partition=n, level=2) for n in range(4)]
        consumer.commit({TopicPartition(emails, partition=0, level=2): 18})
        with pytest.raises(ConfigError, match="this level does not read"):
            consumer.commit({TopicPartition(emails, partition=0, level=1): 18})
        assert consumer.committed([TopicPartition(emails, partition=0, level=2)]) == {
            TopicPartition(emails, partition=0, level=2): 18
        }
    assert groups(kafka_cluster, group) == [group]


def test_a_pattern_is_refused_where_one_group_reads_topics_under_their_own_names(kafka_cluster: Cluster) -> None:
    with (
        PriorityConsumer(config_of(kafka_cluster, "tasks"), policy="fair") as consumer,
        pytest.raises(ConfigError, match=r"one group reads all levels.*group\.per\.level"),
    ):
        consumer.subscribe({"^emails.*": 2, "reports": 0})


def test_a_pattern_of_level_topics_finds_all_levels_in_one_group(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    for level in range(LEVELS):
        fill(kafka_cluster, topic, 3, level)
    with PriorityConsumer(config_of(kafka_cluster, topic), policy="fair") as consumer:
        consumer.subscribe(f"^{topic}")
        assert {(record.topic, record.level) for record in read(consumer, 9)} == {(topic, 0), (topic, 1), (topic, 2)}
        consumer.commit()


def test_a_level_is_paused_sought_and_resumed_alone(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with PriorityConsumer(config_of(kafka_cluster, topic), policy="fair") as consumer:
        consumer.subscribe(topic)
        wait_for(lambda: consumer.poll(0.05) is not None and len(consumer.assignment()) == LEVELS * PARTITIONS)
        consumer.pause(level=1)
        assert {each.level for each in consumer.paused()} == {1}
        for level in range(LEVELS):
            fill(kafka_cluster, topic, 10, level)
        assert {record.level for record in read(consumer, 20)} == {0, 2}
        assert consumer.poll(0.5) == []
        consumer.resume(level=1)
        assert {record.level for record in read(consumer, 10)} == {1}
        consumer.seek_to_beginning([each for each in consumer.assignment() if each.level == 2])
        assert {record.level for record in read(consumer, 10)} == {2}


def test_a_static_member_that_comes_back_goes_on_without_a_rebalance(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    static = {"group.instance.id": "member", "enable.auto.commit": True}
    for count in (3, 4):
        for level in range(LEVELS):
            fill(kafka_cluster, topic, count, level)
        with PriorityConsumer(config_of(kafka_cluster, topic, **static), policy="fair") as consumer:
            consumer.subscribe(topic)
            records = read(consumer, count * LEVELS)
            assert Counter(record.level for record in records) == dict.fromkeys(range(LEVELS), count)
    assert commits(kafka_cluster, topic, topic) == {level_topic(topic, level): 7 for level in range(LEVELS)}


def test_group_per_level_has_no_place_without_levels() -> None:
    with pytest.raises(ConfigError, match=r"group\.per\.level is true, but the setting levels is missing"):
        ParallelConsumer({"group.id": "tasks", "group.per.level": True})
    with pytest.raises(ConfigError, match="must be true or false"):
        ParallelConsumer({"group.id": "tasks", "levels": 2, "group.per.level": "no"})
