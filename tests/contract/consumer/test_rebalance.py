"""Members that come and go. On Apache Kafka: its coordinator decides, with all three ways to rebalance."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from headway.errors import FetchError, HeadwayError
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord, RecordMetadata, TopicPartition
from tests.contract.conftest import Cluster
from tests.made import made_by

EAGER = {"partition.assignment.strategy": "range"}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER_PROTOCOL = {"group.protocol": "consumer", "heartbeat.interval.ms": None, "session.timeout.ms": None}

pytestmark = pytest.mark.kafka


def place(record: ConsumerRecord) -> tuple[str, int, int, int]:
    return record.topic, record.level, record.partition, record.offset


class Member:
    """A consumer on a thread of its own that notes what it was given."""

    def __init__(self, cluster: Cluster, topic: str, policy: str, settings: dict[str, Any]) -> None:
        config = {key: value for key, value in (cluster.consumer_config(topic) | settings).items() if value is not None}
        self.consumer = PriorityConsumer(config | {"enable.auto.commit": True}, policy=policy)  # type: ignore[arg-type]
        self.consumer.subscribe(topic)
        self.records: list[ConsumerRecord] = []
        self.stopping = threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self.consumer:
                while not self.stopping.is_set():
                    self.records += self.consumer.poll(0.1)
        except HeadwayError as error:
            self.error = error

    def holds(self) -> str:
        """Return what it reads, and how it stands."""
        held = sorted((at.level, at.partition) for at in self.consumer.assignment())
        return f"{held}, {self.consumer.metrics()}, {self.error!r}"

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
        assert self.error is None


@contextmanager
def members(cluster: Cluster, topic: str, policy: str, settings: dict[str, Any], count: int) -> Iterator[list[Member]]:
    joined = [Member(cluster, topic, policy, settings) for _ in range(count)]
    try:
        yield joined
    finally:
        for member in joined:
            member.stop()


def wait_for(condition: Any, seconds: float = 30, tell: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, tell()
        threading.Event().wait(0.02)


def missing(places: set[tuple[str, int, int, int]]) -> list[str]:
    """Return how many records of each partition are missing, and between which offsets."""
    offsets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for _, level, partition, offset in places:
        offsets[level, partition].append(offset)
    return [f"{len(of)} of level {at[0]}, {at[1]}: {min(of)}-{max(of)}" for at, of in sorted(offsets.items())]


@pytest.mark.quick("fair-kip848")
@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE, CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
@pytest.mark.parametrize("policy", ["capacity_burst", "fair", "strict"])
def test_members_joining_and_leaving_under_load_lose_nothing_and_keep_the_order(
    kafka_cluster: Cluster, policy: str, settings: dict[str, Any]
) -> None:
    topic, count = kafka_cluster.topic(), 30_000
    everyone: list[Member] = []

    def read() -> set[tuple[str, int, int, int]]:
        return {place(record) for member in everyone for record in list(member.records)}

    def send(count: int) -> list[Future[RecordMetadata]]:
        return [producer.send(topic, str(i), str(i % 500), level=i % 3) for i in range(count)]

    with kafka_cluster.producer(**{"linger.ms": 5}) as producer:
        sent: list[Future[RecordMetadata]] = []
        for part in (count // 3, count // 6, count // 2):  # a member joins, and a part is sent meanwhile
            everyone.append(Member(kafka_cluster, topic, policy, settings))
            sent += send(part)
        producer.flush(30)
        wait_for(lambda: all(len(member.consumer.assignment()) > 0 for member in everyone))
        everyone[0].stop()
        sent += send(3000)
    kept = {(at.topic, at.level, at.partition, at.offset) for at in (future.result(30) for future in sent)}
    try:
        wait_for(
            lambda: len(read()) == len(kept),
            tell=lambda: f"missing: {missing(kept - read())}; they have {[each.holds() for each in everyone[1:]]}",
        )
        assert read() == kept
    finally:
        for member in everyone:
            member.stop()
    for member in everyone:
        assert_ascending_within_an_assignment(member.records)


def assert_ascending_within_an_assignment(records: list[ConsumerRecord]) -> None:
    """Offsets only go back where a partition was lost and came again, to what was committed."""
    returns: dict[TopicPartition, int] = defaultdict(int)
    last: dict[TopicPartition, int] = {}
    for record in records:
        partition = record.topic_partition
        returns[partition] += record.offset <= last.get(partition, -1)
        last[partition] = record.offset
    assert all(count <= 3 for count in returns.values())


def test_two_members_share_every_level(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with members(kafka_cluster, topic, "fair", EAGER, 2) as [first, second]:
        share = Counter(dict.fromkeys(range(3), 2))  # each level is a group of its own, and meets on its own
        wait_for(
            lambda: all(Counter(at.level for at in each.consumer.assignment()) == share for each in (first, second))
        )
        assert not first.consumer.assignment() & second.consumer.assignment()


@pytest.mark.slow
def test_a_rebalance_goes_through_while_a_level_is_asked_for_nothing(kafka_cluster: Cluster) -> None:
    """Under strict a flood at the top leaves a full buffer below, and its level unasked for seconds."""
    topic = kafka_cluster.topic()
    with kafka_cluster.producer(**{"linger.ms": 5}) as producer:
        for i in range(300_000):
            producer.send(topic, b"flood", str(i), level=2 * (i % 10 > 0))
    settings = kafka_cluster.consumer_config(topic) | {"strict.max.wait.ms": 600_000}
    with made_by("headway.kafka.consumer.level_consumers.LevelConsumers") as made:
        starving = PriorityConsumer(settings, policy="strict")
    with starving:
        starving.subscribe(topic)

        def starved() -> bool:
            starving.poll(0.1)
            return bool(made[0][0].is_parked)

        wait_for(starved)
        with members(kafka_cluster, topic, "strict", EAGER, 1) as [second]:
            wait_for(lambda: starved() and {each.level for each in second.consumer.assignment()} == {0, 1, 2})
            assert starving.metrics()[2].lag > 0  # the flood was there all the time


@pytest.mark.slow
def test_a_member_that_stops_polling_is_told_what_it_lost_and_commits_nothing(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    lost: list[TopicPartition] = []
    with kafka_cluster.producer() as producer:
        for i in range(30):
            producer.send(topic, b"v", level=i % 3)
    settings = {"max.poll.interval.ms": 6000, "enable.auto.commit": True, "auto.commit.interval.ms": 600_000}
    with kafka_cluster.consumer(topic, log_level=0, **settings) as late:
        late.subscribe(topic, on_lost=lost.extend)
        first: list[ConsumerRecord] = []
        while len(first) < 30:
            first += late.poll(10)
        time.sleep(8)  # this is what is tested: a member that does something else for too long
        again: list[ConsumerRecord] = []
        errors = 0
        while len(again) < 30:
            try:
                again += late.poll(10)
            except FetchError:  # "maximum poll interval exceeded", once a level
                errors += 1
        assert errors == 3
        assert len(lost) == 12
    assert {place(record) for record in again} == {place(record) for record in first}


@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE, CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
def test_a_listener_may_seek_every_partition_that_it_has_and_not_only_those_it_is_given(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic, held = kafka_cluster.topic(levels=1), set[TopicPartition]()
    with kafka_cluster.producer() as producer:
        for i in range(200):
            producer.send(topic, str(i), partition=i % 4, level=0)
    config = kafka_cluster.consumer_config(topic) | settings | {"levels": 1, "enable.auto.commit": True}
    config = {key: value for key, value in config.items() if value is not None}
    consumer, other = PriorityConsumer(config), PriorityConsumer(config)

    def start_over(given: list[TopicPartition]) -> None:
        held.update(given)
        for partition in held:
            consumer.seek(partition, 0)

    with consumer:
        with other:
            consumer.subscribe(topic, start_over, held.difference_update)
            other.subscribe(topic)
            wait_for(lambda: (consumer.poll(0.01), other.poll(0.01)) and len(other.assignment()) == len(held) == 2)
            wait_for(lambda: sum(map(consumer.position, held)) == 100 or consumer.poll(0.01) is None)
        again = list[ConsumerRecord]()
        deadline = time.monotonic() + 30
        while (len(held) < 4 or len(again) < 200) and time.monotonic() < deadline:
            again += consumer.poll(0.1)
        assert sorted(place(record)[2:] for record in again) == [(p, i) for p in range(4) for i in range(50)]
