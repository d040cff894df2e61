"""Seeks and pauses while records are handled, on a real Apache Kafka: what is in flight, and what is committed."""

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest

from headway import ConsumerRecord, Context, ParallelConsumer, Producer, Retries, TopicPartition
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    COOPERATIVE,
    OFTEN,
    Member,
    committed,
    consumer,
    log_ends,
    plain_topic,
    send,
    settings_of,
    topic_of,
    wait_for,
)

pytestmark = pytest.mark.kafka

MODES = ["async", "transactional"]


class Handled:
    """A handler that notes what it begins and ends, and can be held up for a record."""

    def __init__(self) -> None:
        self.began: list[tuple[TopicPartition, int]] = []
        self.ended: list[tuple[TopicPartition, int]] = []
        self.running = Counter[tuple[TopicPartition, int]]()
        self.twice_at_a_time: list[tuple[TopicPartition, int]] = []
        self.gates: dict[bytes, threading.Event] = {}
        self._lock = threading.Lock()

    def __call__(self, record: ConsumerRecord, context: Context) -> None:
        place = record.topic_partition, record.offset
        with self._lock:
            self.began.append(place)
            self.running[place] += 1
            if self.running[place] > 1:
                self.twice_at_a_time.append(place)
        if gate := self.gates.get(record.value):
            gate.wait(30)
        with self._lock:
            self.running[place] -= 1
            self.ended.append(place)

    def offsets(self, partition: TopicPartition | None = None) -> list[int]:
        return [offset for where, offset in self.ended if partition in (None, where)]

    def hold(self, value: str) -> threading.Event:
        gate = self.gates[value.encode()] = threading.Event()
        return gate


def at(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition=partition)


# Seeks


@pytest.mark.parametrize("mode", MODES)
def test_a_seek_back_waits_for_what_runs_which_counts_no_more(kafka_cluster: Cluster, mode: str) -> None:
    topic, handled = topic_of(kafka_cluster, 1), Handled()
    gate = handled.hold("3")
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(6)])
    member = Member(consumer(kafka_cluster, topic, {"commit_mode": mode}), handled)
    wait_for(lambda: len(handled.ended) == 5)  # all but 3, which runs
    member.consumer.seek(at(topic), 2)
    member.consumer.request_commit()
    time.sleep(0.5)  # in which nothing may start
    assert sorted(handled.began) == [(at(topic), i) for i in range(6)]
    gate.set()
    wait_for(lambda: len(handled.ended) == 10)
    assert handled.twice_at_a_time == []
    assert sorted(handled.offsets()[6:]) == [2, 3, 4, 5]
    member.stop()
    assert committed(kafka_cluster, topic) == {0: (6, b"")}


def test_a_seek_does_not_wait_for_ever_for_a_handler(kafka_cluster: Cluster) -> None:
    topic, handled = topic_of(kafka_cluster, 1), Handled()
    gate = handled.hold("0")
    send(kafka_cluster, topic, [("a", "0"), ("b", "1")])
    member = Member(consumer(kafka_cluster, topic, {"hand_over_timeout": 0.3}), handled)
    wait_for(lambda: len(handled.ended) == 1)
    member.consumer.seek(at(topic), 1)
    wait_for(lambda: len(handled.ended) == 2)
    gate.set()
    member.stop()
    assert handled.offsets() == [1, 1, 0]
    assert committed(kafka_cluster, topic) == {0: (2, b"")}


@pytest.mark.parametrize("mode", MODES)
def test_the_next_commit_has_the_new_place_though_nothing_is_handled_there(kafka_cluster: Cluster, mode: str) -> None:
    topic, handled = topic_of(kafka_cluster, 1), Handled()
    send(kafka_cluster, topic, [("a", str(i)) for i in range(6)])
    member = Member(consumer(kafka_cluster, topic, {"commit_mode": mode}, **OFTEN), handled)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (6, b"")})
    member.consumer.pause(topic=topic)
    member.consumer.seek(at(topic), 2)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (2, b"")})
    member.consumer.seek_to_end()
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (6, b"")})
    member.consumer.seek_to_beginning([at(topic)])
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (0, b"")})
    member.consumer.seek(at(topic), 99)  # as near as can be
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (6, b"")})
    assert len(handled.began) == 6
    member.stop()


@pytest.mark.parametrize("mode", MODES)
def test_a_seek_that_has_not_begun_when_the_run_ends_is_in_the_last_commit(kafka_cluster: Cluster, mode: str) -> None:
    topic, handled, revoked = topic_of(kafka_cluster, 1), Handled(), list[TopicPartition]()
    gate = handled.hold("3")
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(6)])
    settings = kafka_cluster.config(settings_of(topic))
    parallel = ParallelConsumer(settings, commit_mode=mode)  # type: ignore[arg-type]
    parallel.subscribe(topic, on_revoke=revoked.extend)
    member = Member(parallel, handled)
    wait_for(lambda: len(handled.ended) == 5)
    parallel.request_commit()
    wait_for(lambda: committed(kafka_cluster, topic).get(0, (0, b""))[0] == 3)
    parallel.seek(at(topic), 1)  # while a handler runs, for which it waits
    member.stop(drain=False)
    gate.set()
    assert revoked == [at(topic)]
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


def test_a_seek_to_a_time_goes_on_with_its_first_record_or_at_the_end(kafka_cluster: Cluster) -> None:
    topic, handled = topic_of(kafka_cluster, 1), Handled()
    records: list[ConsumerRecord] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        records.append(record)
        handled(record, context)

    member = Member(consumer(kafka_cluster, topic, **OFTEN), handle)
    for i in range(3):
        send(kafka_cluster, topic, [("a", str(i))])
        time.sleep(0.02)
    wait_for(lambda: len(handled.ended) == 3)
    member.consumer.seek_to_time(records[1].timestamp)
    wait_for(lambda: handled.offsets() == [0, 1, 2, 1, 2])
    member.consumer.seek_to_time(records[-1].timestamp + 60_000)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (3, b"")})
    member.stop()
    assert handled.offsets() == [0, 1, 2, 1, 2]


def test_on_assign_may_seek_and_no_record_before_that_place_starts(kafka_cluster: Cluster) -> None:
    topic, handled = topic_of(kafka_cluster, 1), Handled()
    send(kafka_cluster, topic, [("a", str(i)) for i in range(100)])
    parallel = ParallelConsumer(kafka_cluster.config(settings_of(topic)))
    parallel.subscribe(topic, on_assign=lambda partitions: parallel.seek(partitions[0], 95))
    member = Member(parallel, handled)
    wait_for(lambda: len(handled.ended) == 5)
    member.stop()
    assert handled.offsets() == [95, 96, 97, 98, 99]


# Pauses


def test_a_paused_partition_starts_nothing_and_the_others_go_on(kafka_cluster: Cluster) -> None:
    topic, handled = topic_of(kafka_cluster, 2), Handled()
    gate = handled.hold("first")
    send(kafka_cluster, topic, [("a", "first"), *((f"key-{i}", str(i)) for i in range(50))], partition=0)
    member = Member(consumer(kafka_cluster, topic, {"max_concurrency": 1}, **OFTEN), handled)
    wait_for(lambda: handled.began)
    member.consumer.pause([at(topic, 0)])
    assert member.consumer.paused() == {at(topic, 0)}
    gate.set()  # what runs goes on, and is committed
    send(kafka_cluster, topic, [("b", str(i)) for i in range(20)], partition=1)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(20)], partition=0)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (1, b""), 1: (20, b"")})
    assert handled.offsets(at(topic, 0)) == [0]
    member.consumer.resume([at(topic, 0)])
    wait_for(lambda: len(handled.offsets(at(topic, 0))) == 71)
    assert member.consumer.paused() == set()
    member.stop()
    assert handled.offsets(at(topic, 0)) == list(range(71))


def test_a_record_that_failed_keeps_its_attempts_through_a_pause(kafka_cluster: Cluster) -> None:
    topic, attempts = topic_of(kafka_cluster, 1), list[int]()
    send(kafka_cluster, topic, [("a", "1")])

    def handle(record: ConsumerRecord, context: Context) -> None:
        attempts.append(context.attempt)
        if context.attempt == 2:
            member.consumer.pause(topic=topic)
        if context.attempt < 4:
            raise ValueError("again")

    member = Member(consumer(kafka_cluster, topic, {"retries": Retries(fixed_backoff(0.01))}), handle)
    wait_for(lambda: len(attempts) == 2 and member.consumer.metrics().running == 0)
    time.sleep(0.2)  # twenty back-offs, in which no attempt may start
    assert attempts == [1, 2]
    member.consumer.resume(topic=topic)
    wait_for(lambda: member.consumer.metrics().done == 1)
    member.stop()
    assert attempts == [1, 2, 3, 4]


def test_a_level_can_be_paused_and_stays_so_through_a_rebalance(kafka_cluster: Cluster) -> None:
    topic, handled = kafka_cluster.topic(2), Handled()

    def send_to_both(count: int) -> None:
        with Producer(kafka_cluster.config({"levels": 2})) as producer:
            for i in range(count):
                producer.send(topic, str(i), key=str(i), level=i % 2)

    def done(level: int) -> int:
        return sum(where.level == level for where, _ in handled.ended)

    member = Member(consumer(kafka_cluster, topic, levels=2), handled)
    wait_for(lambda: len(member.consumer.assignment()) == 8)
    member.consumer.pause(level=0)
    other = Member(consumer(kafka_cluster, topic, levels=2), Handled())
    wait_for(lambda: len(member.consumer.assignment()) == 4)
    other.stop()
    wait_for(lambda: len(member.consumer.assignment()) == 8)
    send_to_both(40)
    wait_for(lambda: done(1) == 20)
    assert done(0) == 0
    assert {each.level for each in member.consumer.paused()} == {0}
    member.consumer.resume()
    wait_for(lambda: done(0) == 20)
    member.stop()


def test_pauses_end_as_they_were_asked_for(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 2)
    member = Member(consumer(kafka_cluster, topic), Handled())
    wait_for(lambda: len(member.consumer.assignment()) == 2)
    parallel, first, second = member.consumer, at(topic, 0), at(topic, 1)
    parallel.pause([])
    assert parallel.paused() == set()
    parallel.pause([first])
    parallel.pause(level=0)
    parallel.resume(level=0)
    assert parallel.paused() == {first}
    parallel.pause()
    parallel.resume([first])
    assert parallel.paused() == {first, second}
    parallel.resume()
    assert parallel.paused() == set()
    member.stop()


def test_what_cannot_be_paused_or_sought_is_refused_with_a_sentence(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    member = Member(consumer(kafka_cluster, topic), Handled())
    wait_for(member.consumer.assignment)
    parallel = member.consumer
    noon: Any = "noon"
    number: Any = 7
    one: Any = at(topic)
    name: Any = topic
    calls: list[tuple[str, Any]] = [
        ("is not assigned to this consumer now", lambda: parallel.seek(at("elsewhere"), 3)),
        ("offset is -1; it must be at least 0", lambda: parallel.seek(at(topic), -1)),
        ("timestamp is 'noon'", lambda: parallel.seek_to_time(noon)),
        ("Level 3 does not exist", lambda: parallel.pause(level=3)),
        ("is not a collection of partitions", lambda: parallel.pause(one)),
        ("is not a collection of partitions", lambda: parallel.resume(name)),
        ("topic is 7; it must be the name", lambda: parallel.pause(topic=number)),
    ]
    for sentence, call in calls:
        with pytest.raises(ConfigError, match=sentence):
            call()
    member.stop()


# Random sequences beside a model


class Flow:
    """Members under random pauses, seeks and rebalances, and what each must not have done."""

    def __init__(self, cluster: Cluster, seed: int, settings: dict[str, Any], options: dict[str, Any]) -> None:
        self.cluster, self.random = cluster, random.Random(seed)
        self.topic = plain_topic(cluster)
        self.partitions = [at(self.topic, number) for number in range(4)]
        self.settings, self.options = settings, options
        self.members: list[tuple[Member, Handled, set[TopicPartition]]] = []
        self.sent = 0
        self.join()

    def join(self) -> None:
        handled = Handled()
        parallel = consumer(self.cluster, self.topic, {"max_concurrency": 4, **self.options}, **OFTEN | self.settings)

        def handle(record: ConsumerRecord, context: Context) -> None:
            time.sleep(0.002)
            handled(record, context)

        self.members.append((Member(parallel, handle), handled, set()))

    def leave(self) -> None:
        if len(self.members) > 1:
            member, handled, _ = self.members.pop(self.random.randrange(len(self.members)))
            member.stop()
            assert handled.twice_at_a_time == []

    def produce(self) -> None:
        count = self.random.randint(1, 60)
        send(self.cluster, self.topic, [(f"key-{self.random.randint(0, 20)}", "x") for _ in range(count)])
        self.sent += count

    def pause(self) -> None:
        member, handled, paused = self.random.choice(self.members)
        chosen = self.random.sample(self.partitions, self.random.randint(1, 3))
        member.consumer.pause(chosen)
        paused.update(chosen)
        time.sleep(0.05)  # what had its slot before may begin yet
        before = {each: self._began(handled, each) for each in paused}
        time.sleep(0.05)
        assert {each: self._began(handled, each) for each in paused} == before

    def resume(self) -> None:
        member, _, paused = self.random.choice(self.members)
        member.consumer.resume(paused)
        paused.clear()

    def seek(self) -> None:
        member, _, _ = self.random.choice(self.members)
        for partition in self.random.sample(self.partitions, 2):
            try:
                member.consumer.seek(partition, self.random.randint(0, 30))
            except ConfigError:  # another member's, or about to leave
                continue

    def step(self) -> None:
        do = self.random.choices(
            [self.produce, self.pause, self.resume, self.seek, self.join, self.leave], [5, 3, 3, 3, 1, 1]
        )[0]
        if do != self.join or len(self.members) < 3:
            do()
        time.sleep(self.random.choice([0, 0.01, 0.1]))

    def finish(self) -> None:
        for member, _, paused in self.members:
            member.consumer.resume()
            paused.clear()
        ends = {number: (end, b"") for number, end in log_ends(self.cluster, self.topic).items()}
        wait_for(lambda: committed(self.cluster, self.topic) == ends, 60)
        for member, each, _ in self.members:
            member.stop()
            assert each.twice_at_a_time == []

    def close(self) -> None:
        for member, _, _ in self.members:
            member.consumer.close(drain=False)

    @staticmethod
    def _began(handled: Handled, partition: TopicPartition) -> int:
        return sum(where == partition for where, _ in list(handled.began))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
@pytest.mark.parametrize("mode", MODES)
def test_whatever_is_paused_and_sought_all_is_committed_at_the_end(
    kafka_cluster: Cluster, seed: int, mode: str
) -> None:
    flow = Flow(kafka_cluster, seed, COOPERATIVE if seed % 2 else {}, {"commit_mode": mode})
    try:
        for _ in range(60):
            flow.step()
        flow.finish()
    finally:
        flow.close()
