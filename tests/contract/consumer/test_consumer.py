import contextlib
import itertools
import signal
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import pytest

from headway.broker import LocalBroker
from headway.core.levels.capacity import exponential_shares, linear_shares
from headway.core.levels.group_subscription import GroupSubscription
from headway.core.levels.naming import LevelSubscription
from headway.errors import ClosedError, ConfigError, DeserializationError, FetchError, KafkaError, WakeupError
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.messages import take_messages
from headway.kafka.consumer import group_client
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.serialization import key_reader, value_reader
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.contract.conftest import PARTITIONS, Cluster, cluster_of
from tests.kafka_proxy import KafkaProxy

Place = tuple[str, int, int, int]

_OFFSET_FETCH = 9


class Silent:
    """Who does not care what a level has."""

    def assigned(self, partitions: list[TopicPartition]) -> None: ...
    def revoked(self, partitions: list[TopicPartition]) -> None: ...
    def lost(self, partitions: list[TopicPartition]) -> None: ...


def place(record: ConsumerRecord) -> Place:
    return record.topic, record.level, record.partition, record.offset


def fill(cluster: Cluster, topic: str, per_level: int, **record: Any) -> None:
    with cluster.producer() as producer:
        for i in range(per_level):
            for level in range(3):
                producer.send(topic, str(i), str(i), level=level, **record)


def read(consumer: PriorityConsumer, count: int) -> list[ConsumerRecord]:
    """Exactly as many records as there are, with an assertion that no poll gives too many."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        polled = consumer.poll(30)
        assert 0 < len(polled) <= 70
        records += polled
    return records


def until(consumer: PriorityConsumer, condition: Callable[[], object]) -> list[ConsumerRecord]:
    """Poll until something is so; what came meanwhile."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        records += consumer.poll(0.05)
    return records


def poll_until_it_raises(consumer: PriorityConsumer, error: type[Exception]) -> list[ConsumerRecord]:
    """What came before."""
    records: list[ConsumerRecord] = []
    with contextlib.suppress(error):
        for _ in range(100):
            records += consumer.poll(30)
        pytest.fail(f"{error.__name__} was not raised")
    return records


@pytest.mark.parametrize("policy", ["capacity_burst", "fair", "strict"])
def test_every_record_comes_once_highest_level_first_in_offset_order(cluster: Cluster, policy: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 200)
    seen: list[ConsumerRecord] = []
    with cluster.consumer(topic, policy) as consumer:
        consumer.subscribe(topic)
        while len(seen) < 600:
            polled = consumer.poll(30)
            assert [record.level for record in polled] == sorted((record.level for record in polled), reverse=True)
            seen += polled
        assert consumer.poll(0) == []
    assert len({place(record) for record in seen}) == 600
    offsets = defaultdict(list)
    for record in seen:
        offsets[record.topic_partition].append(record.offset)
    assert all(of_partition == list(range(len(of_partition))) for of_partition in offsets.values())


@pytest.mark.quick("kafka")
def test_a_poll_over_a_backlog_gives_each_level_its_share(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 3_000)
    shares = exponential_shares(3, 70)
    polls: list[list[int]] = []
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        until(consumer, lambda: len(consumer.assignment()) == 12)
        rounds = 0
        while shares not in polls and rounds < 10:  # a busy broker may answer one level after the others are read
            consumer.seek_to_beginning()
            rounds += 1
            read = 0
            while read < 9_000 and shares not in polls:
                levels = [record.level for record in consumer.poll(30)]
                polls.append([levels.count(level) for level in range(3)])
                read += len(levels)
    assert shares in polls


def test_a_poll_waits_no_longer_than_its_timeout(cluster: Cluster) -> None:
    with cluster.consumer("nobody") as consumer:
        consumer.subscribe(cluster.topic())
        start = time.monotonic()
        assert consumer.poll(0.3) == []
        assert 0.3 <= time.monotonic() - start < 10


def test_a_waiting_poll_returns_as_soon_as_a_record_comes(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.consumer(topic) as consumer, cluster.producer() as producer:
        consumer.subscribe(topic)
        until(consumer, lambda: len(consumer.assignment()) == 12)
        threading.Timer(0.2, lambda: producer.send(topic, b"now", level=1)).start()
        start = time.monotonic()
        [record] = consumer.poll(30)
        assert record.value == b"now"
        assert time.monotonic() - start < 25


def test_iterating_gives_record_by_record(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 10)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        places = {place(record) for record in itertools.islice(consumer, 30)}
    assert len(places) == 30


@pytest.mark.quick("kafka")
def test_breaking_out_of_an_iteration_commits_only_what_was_handed_out(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 10)
    seen: list[Place] = []
    for wanted in (1, 7, 22):
        with cluster.consumer(topic, **{"enable.auto.commit": True}) as consumer:
            consumer.subscribe(topic)
            for count, record in enumerate(consumer, start=1):
                seen.append(place(record))
                if count == wanted:
                    break
    assert len(seen) == len(set(seen)) == 30


@pytest.mark.quick("kafka")
def test_what_was_returned_is_committed_and_a_new_member_goes_on_from_there(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 100)
    with cluster.consumer(topic, "fair") as first:
        first.subscribe(topic)
        before = read(first, 100)
        first.commit()
    with cluster.consumer(topic, "fair") as second:
        second.subscribe(topic)
        after = read(second, 300 - len(before))
    assert len({place(record) for record in before + after}) == 300


@pytest.mark.quick("kafka-fair")
@pytest.mark.parametrize("policy", ["capacity_burst", "fair", "strict"])
def test_leaving_in_the_midst_of_a_backlog_loses_nothing_and_repeats_nothing(cluster: Cluster, policy: str) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 700)
    seen: list[Place] = []
    with cluster.consumer(topic, policy, **{"enable.auto.commit": True}) as consumer:
        consumer.subscribe(topic)
        seen += [place(record) for record in read(consumer, 200)]
        consumer.unsubscribe()
        consumer.subscribe(topic)
        seen += [place(record) for record in read(consumer, 200)]
    with cluster.consumer(topic, policy) as successor:
        successor.subscribe(topic)
        seen += [place(record) for record in read(successor, 2100 - len(seen))]
    assert len(seen) == len(set(seen)) == 2100


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_closing_before_an_assignment_was_looked_at_does_not_hang(cluster: Cluster, strategy: str) -> None:
    topic = cluster.topic()
    for _ in range(5):
        consumer = cluster.consumer(uuid.uuid4().hex, **{"partition.assignment.strategy": strategy})
        consumer.subscribe(topic)
        consumer.wake.wait(10)  # the assignment of a level is in its queue
        start = time.monotonic()
        consumer.close()
        assert time.monotonic() - start < 30


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_that_close_while_their_group_meets_do_not_hang(mock_cluster: Cluster, strategy: str) -> None:
    cluster = mock_cluster  # Kafka waits for the others as long as they may take between two polls
    topic = cluster.topic(levels=1)
    settings = {"levels": 1, "partition.assignment.strategy": strategy}
    members = [cluster.consumer(topic, **settings) for _ in range(PARTITIONS + 2)]  # two have nothing in the end
    for member in members:
        member.subscribe(topic)
    while not any(member.assignment() for member in members[:3]):
        for member in members[:3]:  # the others do not answer
            member.poll(0.01)
    took = []
    for member in members:
        start = time.monotonic()
        member.close()
        took.append(time.monotonic() - start)
    assert max(took) < 30  # the sessions of who does not answer have to end


@pytest.mark.quick("kafka")
def test_closing_commits_what_was_returned_unless_an_error_ended_it(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 10)
    auto = {"enable.auto.commit": True}

    def read_and_fail() -> None:
        with cluster.consumer(topic, **auto) as failing:
            failing.subscribe(topic)
            read(failing, 30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read_and_fail()
    with cluster.consumer(topic, **auto) as again:
        again.subscribe(topic)
        read(again, 30)
    with cluster.consumer(topic, **auto) as third:
        third.subscribe(topic)
        assert until(third, lambda: len(third.assignment()) == 12) == []
        assert third.poll(0.5) == []


@pytest.mark.quick("kafka")
def test_given_offsets_are_committed_in_the_group_of_their_level(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 10)
    chosen = {TopicPartition(topic, partition=1, level=level): level + 1 for level in range(3)}
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        read(consumer, 30)
        consumer.commit(chosen)
        untouched = TopicPartition(topic, partition=0, level=2)
        assert consumer.committed([*chosen, untouched]) == chosen | {untouched: None}


def test_a_position_is_the_next_offset_to_be_returned(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        for _ in range(100):
            producer.send(topic, b"v", partition=2)
    partition = TopicPartition(topic, partition=2)
    with cluster.consumer(topic, "fair") as consumer:
        consumer.subscribe(topic)
        until(consumer, lambda: partition in consumer.assignment() and consumer.metrics()[0].returned)
        assert consumer.position(partition) == consumer.metrics()[0].returned
        assert consumer.position(TopicPartition(topic, partition=0)) == 0


@pytest.mark.quick("kafka")
def test_seeking_goes_to_the_offset_whatever_was_fetched_ahead(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        for i in range(300):
            producer.send(topic, str(i), partition=0, level=1)
    partition = TopicPartition(topic, partition=0, level=1)
    with cluster.consumer(topic, "fair") as consumer:
        consumer.subscribe(topic)
        read(consumer, 1)
        consumer.seek(partition, 250)
        assert consumer.position(partition) == 250
        assert [record.offset for record in read(consumer, 50)] == list(range(250, 300))
        consumer.seek_to_beginning([partition])
        assert read(consumer, 1)[0].offset == 0
        consumer.seek_to_end([partition])
        assert consumer.position(partition) == 300
        assert consumer.poll(0.3) == []


def test_a_listener_may_seek_while_it_is_given_partitions(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 50, partition=0)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(
            topic,
            on_assign=lambda given: consumer.seek(next(each for each in given if each.partition == 0), 45),
        )
        assert sorted(place(record)[1:] for record in read(consumer, 15)) == [
            (level, 0, offset) for level in range(3) for offset in range(45, 50)
        ]


def test_a_paused_level_returns_nothing_and_loses_nothing(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 200)
    with cluster.consumer(topic, "fair") as consumer:
        consumer.subscribe(topic)
        seen = until(consumer, lambda: all(metrics.returned for metrics in consumer.metrics()))
        consumer.pause(level=2)
        assert consumer.paused() == {TopicPartition(topic, partition=partition, level=2) for partition in range(4)}
        paused = until(consumer, lambda: sum(metrics.returned for metrics in consumer.metrics()[:2]) == 400)
        assert {record.level for record in paused} <= {0, 1}
        consumer.resume(level=2)
        rest = until(consumer, lambda: sum(metrics.returned for metrics in consumer.metrics()) >= 600)
    places = [place(record) for record in seen + paused + rest]
    assert len(places) == len(set(places)) == 600


def test_wakeup_from_another_thread_ends_the_poll_and_loses_nothing(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        threading.Timer(0.1, consumer.wakeup).start()
        assert poll_until_it_raises(consumer, WakeupError) == []
        fill(cluster, topic, 50)
        assert len({place(record) for record in read(consumer, 150)}) == 150


def test_a_wakeup_between_polls_ends_the_next_one_only(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(30)
        assert consumer.poll(0) == []


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("policy", ["capacity_burst", "fair", "strict"])
def test_an_error_at_one_level_loses_nothing_of_the_others(
    mock_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, policy: str, failing: int
) -> None:
    topic = mock_cluster.topic()
    fill(mock_cluster, topic, 100)
    seen: list[ConsumerRecord] = []
    errors: list[FetchError] = []
    clients = list[ck.Consumer]()
    to_fail = set[ck.Consumer]()

    def make(*args: Any) -> ck.Consumer:
        clients.append(make_client(*args))
        return clients[-1]

    def take(consumer: ck.Consumer, count: int, timeout: float) -> tuple[list[ck.Message], list[ck.Message]]:
        if consumer in to_fail:
            to_fail.remove(consumer)
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT, "injected"))
        return take_messages(consumer, count, timeout)

    monkeypatch.setattr(group_client, "make_client", make)
    monkeypatch.setattr(group_client, "take_messages", take)
    with mock_cluster.consumer(topic, policy) as consumer:
        consumer.subscribe(topic)
        seen += until(consumer, lambda: len(consumer.assignment()) == 12)
        to_fail.add(clients[failing])
        while len(seen) < 300 or not errors:
            try:
                seen += consumer.poll(1)
            except FetchError as error:
                errors.append(error)
    assert [error.level for error in errors] == [failing]
    lost = 300 - len({place(record) for record in seen})
    assert lost == 0


@pytest.mark.kafka
def test_a_missing_level_topic_is_named_and_the_other_levels_are_read(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=2)  # level 2 is missing
    with kafka_cluster.producer() as producer:
        for i in range(40):
            producer.send(topic, b"v", level=i % 2)
    seen: list[ConsumerRecord] = []
    errors: list[FetchError] = []
    with kafka_cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        while len(seen) < 40 or not errors:
            try:
                seen += consumer.poll(30)
            except FetchError as error:
                errors.append(error)
    assert f"{topic}-2" in str(errors[0])
    assert errors[0].level == 2


def test_what_a_callback_raises_comes_out_of_the_next_poll_and_costs_no_record(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 50)
    raised = iter([ZeroDivisionError("in the callback")])

    def on_assign(partitions: list[TopicPartition]) -> None:
        for error in raised:
            raise error

    seen: list[ConsumerRecord] = []
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic, on_assign=on_assign)
        seen += poll_until_it_raises(consumer, ZeroDivisionError)
        seen += read(consumer, 150 - len(seen))
    assert len({place(record) for record in seen}) == 150


def test_a_value_that_cannot_be_read_raises_when_it_is_asked_for(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        producer.send(topic, b"\xff").result(30)
    with cluster.consumer(topic, **{"value.deserializer": bytes.decode}) as consumer:
        consumer.subscribe(topic)
        [record] = read(consumer, 1)
        with pytest.raises(DeserializationError, match=f"value at offset 0 of {topic}-0"):
            _ = record.value
        assert record.raw_value == b"\xff"


def test_existing_topics_are_read_at_the_level_given(cluster: Cluster) -> None:
    payments, clicks = cluster.topic(levels=1), cluster.topic(levels=1)
    names = f"{payments}-0", f"{clicks}-0"  # plain topics, under their own names
    with cluster.producer() as producer:
        for i in range(100):
            producer.send(payments, str(i))
            producer.send(clicks, str(i))
    with cluster.consumer(payments, "strict") as consumer:
        consumer.subscribe({names[0]: 2, names[1]: 0})
        until(consumer, lambda: len(consumer.assignment()) == 8)
        consumer.seek_to_beginning()
        records = read(consumer, 200)
    assert {(record.topic, record.kafka_topic, record.level) for record in records} == {
        (names[0], names[0], 2),
        (names[1], names[1], 0),
    }


def test_a_seek_right_after_an_assignment_waits_until_librdkafka_knows_where_the_group_was(
    kafka_cluster: Cluster,
) -> None:
    topic = kafka_cluster.topic()
    fill(kafka_cluster, topic, 5)
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        proxy.hold(_OFFSET_FETCH)
        with kafka_cluster.consumer(topic, **{"bootstrap.servers": proxy.bootstrap_servers}) as consumer:
            consumer.subscribe([topic])
            until(consumer, lambda: len(consumer.assignment()) == 3 * PARTITIONS)
            releasing = threading.Timer(0.3, proxy.hold)
            releasing.start()
            consumer.seek_to_beginning()
            assert len(read(consumer, 15)) == 15
            releasing.join()


def test_what_is_subscribed_to_takes_the_place_of_what_was(cluster: Cluster) -> None:
    payments, clicks = cluster.topic(), cluster.topic()
    plain = {f"{payments}-0": 1, f"{clicks}-0": 0}
    for topic in (payments, clicks):
        fill(cluster, topic, 5)

    def assigned() -> set[tuple[str, int]]:
        return {(each.topic, each.level) for each in consumer.assignment()}

    with cluster.consumer(payments) as consumer:
        for topics, wanted in [
            (plain, set(plain.items())),
            ({f"{payments}-0": 1}, {(f"{payments}-0", 1)}),
            ([clicks], {(clicks, 0), (clicks, 1), (clicks, 2)}),
            ({f"{payments}-0": 1}, {(f"{payments}-0", 1)}),
            ([], set()),
        ]:
            consumer.subscribe(topics)
            until(consumer, lambda wanted=wanted: assigned() == wanted)  # type: ignore[misc]
            assert consumer.subscription() == topics
        assert consumer.poll(0.3) == []


def test_ctrl_c_as_a_fetch_returns_loses_no_record(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*arguments: Any) -> tuple[list[ck.Message], list[ck.Message]]:
        messages, events = take_messages(*arguments)
        if messages and is_polled:
            signal.raise_signal(signal.SIGINT)
        return messages, events

    topic, is_polled = cluster.topic(), True
    fill(cluster, topic, 10)
    monkeypatch.setattr(group_client, "take_messages", take)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with cluster.consumer(topic) as consumer:
            consumer.subscribe(topic)
            records, interrupts = set[Place](), 0
            while len(records) < 30:
                try:
                    polled = consumer.poll(30)
                except KeyboardInterrupt:
                    interrupts += 1
                    continue
                assert polled
                records |= set(map(place, polled))
            is_polled = False
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupts


def test_a_pattern_reads_every_level_of_every_topic_that_matches(kafka_cluster: Cluster) -> None:
    first, second = kafka_cluster.topic(), kafka_cluster.topic()
    for topic in (first, second):
        fill(kafka_cluster, topic, 5)
    with kafka_cluster.consumer(first) as consumer:
        consumer.subscribe(f"^({first}|{second})$")
        seen = {(record.topic, record.level) for record in read(consumer, 30)}
    assert seen == {(topic, level) for topic in (first, second) for level in range(3)}


def test_a_consumer_can_leave_and_subscribe_again(cluster: Cluster) -> None:
    first, second = cluster.topic(), cluster.topic()
    fill(cluster, first, 10)
    fill(cluster, second, 10)
    with cluster.consumer(first, **{"enable.auto.commit": True}) as consumer:
        consumer.subscribe(first)
        read(consumer, 30)
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription(), consumer.poll(0.2)) == (set(), (), [])
        consumer.subscribe(second)
        assert {record.topic for record in read(consumer, 30)} == {second}
        consumer.unsubscribe()
        consumer.subscribe(first)
        until(consumer, lambda: len(consumer.assignment()) == 12)
        assert consumer.poll(0.3) == []


def test_what_kafka_has_can_be_asked(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.producer() as producer:
        for offset in range(5):
            producer.send(topic, b"v", partition=1, level=1, timestamp=1_000_000 + offset).result(30)
    partition, empty = TopicPartition(topic, partition=1, level=1), TopicPartition(topic, partition=0, level=2)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        assert consumer.subscription() == [topic]
        assert consumer.beginning_offsets([partition, empty]) == {partition: 0, empty: 0}
        assert consumer.end_offsets([partition, empty]) == {partition: 5, empty: 0}
        assert len(consumer.partitions_for(topic)) == 12
        assert consumer.list_topics()[f"{topic}-2"] == 4


def test_a_topic_with_a_level_given_has_partitions_at_its_own_level_only(cluster: Cluster) -> None:
    topic = cluster.topic()
    emails, clicks = f"{topic}-0", f"{topic}-1"
    with cluster.consumer(topic) as consumer:
        assert consumer.partitions_for(emails) == []
        consumer.subscribe({emails: 2, clicks: 0})
        assert consumer.partitions_for(emails) == [TopicPartition(emails, partition=each, level=2) for each in range(4)]
        assert consumer.partitions_for(clicks) == [TopicPartition(clicks, partition=each, level=0) for each in range(4)]
        assert consumer.partitions_for(f"{topic}-2") == []
        for wrong in (
            TopicPartition(emails, partition=0, level=0),
            TopicPartition(emails, partition=0, level=1),
            TopicPartition(f"{topic}-2", partition=0, level=2),
        ):
            with pytest.raises(ConfigError, match=f"at level {wrong.level} cannot be committed: this"):
                consumer.commit({wrong: 1})


@pytest.mark.kafka
def test_offsets_are_found_by_time(kafka_cluster: Cluster) -> None:  # the mock does not look at timestamps
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for offset in range(5):
            producer.send(topic, b"v", partition=1, level=1, timestamp=1_000_000 + offset).result(30)
    partition = TopicPartition(topic, partition=1, level=1)
    with kafka_cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        assert consumer.offsets_for_times({partition: 1_000_003}) == {partition: 3}
        assert consumer.offsets_for_times({partition: 2_000_000}) == {partition: None}


def test_an_unassigned_partition_cannot_be_sought_or_paused(cluster: Cluster) -> None:
    with cluster.consumer("nobody") as consumer:
        with pytest.raises(ConfigError, match="Partition 7 of orders at level 1 is not assigned"):
            consumer.seek(TopicPartition("orders", partition=7, level=1), 0)
        with pytest.raises(ConfigError, match="Level 9 does not exist; the levels are numbered from 0 to 2"):
            consumer.pause(level=9)


def test_a_closed_consumer_says_so(cluster: Cluster) -> None:
    consumer = cluster.consumer("nobody")
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll(0)


def test_settings_out_of_bounds_are_refused_before_anything_is_opened(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="must be at least 7"):
        cluster.consumer("nobody", **{"max.poll.records": 6})
    with pytest.raises(ConfigError, match="'round_robin' is not one of"):
        cluster.consumer("nobody", "round_robin")
    with pytest.raises(ConfigError, match="'strict' takes no distributor"):
        cluster.consumer("nobody", "strict", linear_shares)
    with cluster.consumer("nobody") as consumer, pytest.raises(ConfigError, match="level of the topic 'a' is 3"):
        consumer.subscribe({"a": 3})


def test_a_distributor_of_ones_own_decides_the_shares(cluster: Cluster) -> None:
    with cluster.consumer("nobody", "fair", lambda levels, capacity: [1, 1, capacity - 2]) as consumer:
        assert [metrics.share for metrics in consumer.metrics()] == [1, 1, 68]


def test_an_idle_consumer_does_not_spin(cluster: Cluster) -> None:
    topic = cluster.topic()
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        until(consumer, lambda: len(consumer.assignment()) == 12)
        before = time.thread_time()
        assert consumer.poll(3) == []
        assert time.thread_time() - before < 0.05 * 3


@pytest.mark.quick("kafka")
def test_an_asynchronous_commit_is_done_when_kafka_says_so_and_then_told(cluster: Cluster) -> None:
    topic = cluster.topic()
    fill(cluster, topic, 10)
    told: list[tuple[object, object]] = []
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        read(consumer, 30)
        offsets = dict.fromkeys(consumer.assignment(), 1)
        consumer.commit(offsets, asynchronous=True, on_commit=lambda *answer: told.append(answer))
        assert told == []
        until(consumer, lambda: told)
        assert told == [(None, offsets)]
        assert consumer.committed(offsets) == offsets


@pytest.mark.slow
@pytest.mark.kafka
def test_a_commit_ends_in_time_while_the_broker_is_down_and_works_when_it_is_back() -> None:
    with LocalBroker() as broker:
        cluster = cluster_of(broker)
        topic = cluster.topic()
        fill(cluster, topic, 10)
        with cluster.consumer(topic, log_level=0, **{"session.timeout.ms": 45_000}) as consumer:
            consumer.subscribe(topic)
            read(consumer, 30)
            broker.nodes[0].kill()
            with pytest.raises(KafkaError, match="did not answer a commit within 1 s"):
                consumer.commit(timeout=1)
            broker.nodes[0].start()
            with contextlib.suppress(KafkaError):  # one that was on its way may be lost with its connection
                consumer.commit(timeout=30)
            consumer.commit(timeout=30)
            assert sum(offset or 0 for offset in consumer.committed(consumer.assignment()).values()) == 30


def test_who_waits_is_woken_for_what_is_behind_the_end_of_a_partition(cluster: Cluster) -> None:
    topic = f"{cluster.topic(levels=1)}-0"
    with cluster.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send(topic.removesuffix("-0"), b"one", partition=partition)
    config = cluster.config({"group.id": topic, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    level = LevelConsumer([0], config, (key_reader(None), value_reader(None)))
    wake = Wakeup()
    level.client.wake_with(wake)
    level.subscribe(GroupSubscription({0: LevelSubscription([topic], "-0")}), Silent())
    records: list[ConsumerRecord] = []
    while len(records) < PARTITIONS:
        if fetched := level.fetch(0, 1, time.monotonic()):
            records += fetched
        else:
            asked = time.monotonic()
            wake.wait(60)
            assert time.monotonic() - asked < 60
    level.client.wake_with(None)
    level.close()
    wake.close()


def test_a_level_that_was_asked_for_nothing_gives_records_at_once_when_it_is_asked_and_each_once(
    cluster: Cluster,
) -> None:
    topic = f"{cluster.topic(levels=1)}-0"
    with cluster.producer() as producer:
        for number in range(PARTITIONS * 20):
            producer.send(topic.removesuffix("-0"), b"one", partition=number % PARTITIONS)
    config = cluster.config({"group.id": topic, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10})
    level = LevelConsumer([0], config, (key_reader(None), value_reader(None)))
    level.subscribe(GroupSubscription({0: LevelSubscription([topic], "-0")}), Silent())
    records: list[ConsumerRecord] = []
    waits: list[float] = []
    while len({record.partition for record in records}) < PARTITIONS:
        records += level.fetch(0, 1, time.monotonic())
    for _ in range(3):
        level.serve(time.monotonic() + 1)
        time.sleep(0.1)  # librdkafka's thread falls asleep, which nobody is told
        asked, had = time.monotonic(), len(records)
        while len(records) == had:
            records += level.fetch(0, 1, time.monotonic())
        waits.append(time.monotonic() - asked)
    while len(records) < PARTITIONS * 20:
        records += level.fetch(0, 500, time.monotonic())
    level.close()
    assert min(waits) < 0.5
    assert len({place(record) for record in records}) == PARTITIONS * 20


@pytest.mark.slow
def test_a_level_that_was_asked_for_nothing_before_it_had_partitions_gives_their_records_at_once(
    kafka_cluster: Cluster,
) -> None:
    assert any(waited_for_the_first(kafka_cluster) < 0.5 for _ in range(3))  # a pause of the machine is none of ours


def waited_for_the_first(kafka_cluster: Cluster) -> float:
    """How long its first record takes once a level has partitions that it had not while it was asked for nothing."""
    topic = f"{kafka_cluster.topic(levels=1)}-0"
    with kafka_cluster.producer() as producer:
        producer.send(topic.removesuffix("-0"), b"one")
    config = kafka_cluster.config({"group.id": topic, "enable.auto.commit": False, "fetch.wait.max.ms": 10})
    before = ck.Consumer({"log_level": 0, **config})
    before.subscribe([topic])
    while not before.assignment():
        before.poll(0.1)
    before.commit(
        offsets=[ck.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)], asynchronous=False
    )
    level = LevelConsumer([0], config, (key_reader(None), value_reader(None)))
    level.subscribe(GroupSubscription({0: LevelSubscription([topic], "-0")}), Silent())
    waiting = time.monotonic()
    while time.monotonic() < waiting + 1.5:  # for `before`; meanwhile a level of which nothing is asked would be parked
        level.serve(time.monotonic())
    before.close()
    came: list[ConsumerRecord] = []
    while not level.membership.assigned:
        level.serve(time.monotonic())
    level.client.committed(level.membership.assigned, 10)
    asked = time.monotonic()
    while not came:
        came += level.fetch(0, 1, time.monotonic())
        assert time.monotonic() - asked < 60
    waited = time.monotonic() - asked
    level.close()
    return waited
