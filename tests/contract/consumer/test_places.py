"""Where a member goes on: what was handed out, and nothing else, is what may be committed, whatever came between."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.levels.naming import LevelSubscription, level_topic
from headway.errors import HeadwayError, KafkaError, WakeupError
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.serialization import key_reader, value_reader
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.consumer import PriorityConsumer
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.background import in_background
from headway.runtime.wakeup import Wakeup
from tests.contract.conftest import LEVELS, PARTITIONS, Cluster
from tests.contract.mock_brokers import mock_brokers
from tests.kafka_proxy import KafkaProxy
from tests.made import made_by
from tests.membership import expel

_OFFSET_FETCH, _CONSUMER_GROUP_HEARTBEAT = 9, 68
_EAGER = {"partition.assignment.strategy": "range"}
_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
_CONSUMER_PROTOCOL = {"group.protocol": "consumer"}

Place = tuple[int, int, int]


def fill(cluster: Cluster, topic: str, per_partition: int, levels: int = LEVELS) -> int:
    """Put so many records into each partition; return how many there are."""
    producer = cluster.plain_producer()
    for level, partition, _ in itertools.product(range(levels), range(PARTITIONS), range(per_partition)):
        producer.produce(level_topic(topic, level), b"", partition=partition)
    assert producer.flush(30) == 0
    return levels * PARTITIONS * per_partition


def do_until(condition: Callable[[], object], step: Callable[[], object], seconds: float = 60) -> None:
    """Take steps until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        step()


def until(consumer: PriorityConsumer, condition: Callable[[], object]) -> list[ConsumerRecord]:
    """Poll until the condition holds; return what came."""
    records: list[ConsumerRecord] = []
    do_until(condition, lambda: records.extend(consumer.poll(0.02)))
    return records


def read(consumer: PriorityConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until so many records came."""
    records: list[ConsumerRecord] = []
    do_until(lambda: len(records) >= count, lambda: records.extend(consumer.poll(0.1)))
    return records


def place(record: ConsumerRecord) -> Place:
    return record.level, record.partition, record.offset


class Silent:
    """A listener that does nothing."""

    def assigned(self, partitions: list[TopicPartition]) -> None: ...
    def revoked(self, partitions: list[TopicPartition]) -> None: ...
    def lost(self, partitions: list[TopicPartition]) -> None: ...


class Iterating:
    """A member on a thread of its own that iterates, and notes what it was handed before it commits."""

    def __init__(self, cluster: Cluster, topic: str, settings: dict[str, Any], handed: list[Place]) -> None:
        config = cluster.consumer_config(topic) | settings
        if "group.protocol" in settings:
            del config["heartbeat.interval.ms"], config["session.timeout.ms"]
        self.consumer = PriorityConsumer(config | {"enable.auto.commit": True}, policy="fair")
        self._handed = handed
        self._leaving = threading.Event()
        self.consumer.subscribe(topic, on_assign=self._seek)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _seek(self, partitions: list[TopicPartition]) -> None:
        """A seek to where it stands anyway, as from a store of offsets of one's own."""
        for partition, offset in self.consumer.committed(partitions).items():
            self.consumer.seek(partition, offset or 0)

    def _run(self) -> None:
        with self.consumer:
            while not self._leaving.is_set():
                with contextlib.suppress(WakeupError):
                    self._iterate()

    def _iterate(self) -> None:
        for record in self.consumer:
            self._handed.append(place(record))
            if self._leaving.is_set():
                return

    def leave(self) -> None:
        """Stop at the next record, or at once if there is none."""
        self._leaving.set()
        deadline = time.monotonic() + 30
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.consumer.wakeup()
            self._thread.join(0.2)
        assert not self._thread.is_alive()


@pytest.mark.kafka
@pytest.mark.parametrize("settings", [_EAGER, _COOPERATIVE, _CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
def test_iterating_members_that_come_and_go_are_handed_every_record(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic()
    count = fill(kafka_cluster, topic, 1000)
    handed: list[Place] = []
    first = Iterating(kafka_cluster, topic, settings, handed)
    for _ in range(2):
        since = len(handed)
        second = Iterating(kafka_cluster, topic, settings, handed)
        _wait(lambda since=since: len(handed) > since + count // 10 or len(set(handed)) == count)  # type: ignore[misc]
        second.leave()
    _wait(lambda: len(set(handed)) == count)
    first.leave()


def _wait(condition: Callable[[], bool]) -> None:
    do_until(condition, lambda: time.sleep(0.02))


def test_a_seek_while_partitions_are_assigned_loses_nothing_that_an_iteration_polled(cluster: Cluster) -> None:
    topic = cluster.topic()
    count = fill(cluster, topic, 20)
    with cluster.consumer(topic, policy="fair") as consumer:

        def start_over(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                consumer.seek(partition, 0)

        consumer.subscribe(topic, on_assign=start_over)
        handed = [place(record) for record in itertools.islice(consumer, count)]
        assert len(set(handed)) == count
        consumer.commit()
        assert set(consumer.committed(consumer.assignment()).values()) == {20}


@pytest.mark.kafka
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(_COOPERATIVE, id="cooperative"),
        pytest.param(_CONSUMER_PROTOCOL, id="kip848", marks=pytest.mark.slow),
    ],
)
def test_partitions_that_were_assigned_before_can_be_sought_when_more_are_assigned(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic()
    count = fill(kafka_cluster, topic, 10)
    config = kafka_cluster.consumer_config(topic) | settings
    if "group.protocol" in settings:
        del config["heartbeat.interval.ms"], config["session.timeout.ms"]
    with PriorityConsumer(config, policy="fair") as stays, PriorityConsumer(config, policy="fair") as leaves:
        sought, handed = set[TopicPartition](), list[Place]()

        def start_over(partitions: list[TopicPartition]) -> None:
            if before := stays.assignment() - set(partitions):
                sought.update(before)
                for partition in before:
                    stays.seek(partition, 0)

        def is_shared() -> bool:
            handed.extend(map(place, stays.poll(0.05)))
            handed.extend(map(place, leaves.poll(0.05)))
            half = LEVELS * PARTITIONS // 2
            return len(stays.assignment()) == len(leaves.assignment()) == half and len(set(handed)) == count

        stays.subscribe(topic, on_assign=start_over)
        leaves.subscribe(topic)

        def is_committed() -> bool:
            try:
                leaves.commit()
            except KafkaError:  # on a busy machine a member may have been expelled meanwhile
                is_shared()
                return False
            return is_shared()

        _wait(is_shared)
        _wait(is_committed)
        before = stays.assignment()
        sought.clear()
        leaves.unsubscribe()
        again = list[Place]()
        wanted = {(level, partition, offset) for _, partition, level in before for offset in range(10)}

        def is_done() -> bool:
            again.extend(map(place, stays.poll(0.05)))
            return len(stays.assignment()) == len(before) * 2 and wanted.issubset(again)

        _wait(is_done)
        assert before <= sought


async def test_an_async_iteration_loses_nothing_to_a_seek_in_a_callback(mock_cluster: Cluster) -> None:
    topic = mock_cluster.topic()
    count = fill(mock_cluster, topic, 20)
    with made_by("headway.priority.async_consumer.PriorityConsumer") as made:
        consumer = AsyncPriorityConsumer(mock_cluster.consumer_config(topic), policy="fair")
    async with consumer:

        def start_over(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                made[0].seek(partition, 0)

        consumer.subscribe(topic, on_assign=start_over)
        handed = [place(record) async for record in _first(consumer, count)]
    assert len(set(handed)) == count


async def _first(consumer: AsyncPriorityConsumer, count: int) -> AsyncIterator[ConsumerRecord]:
    records = aiter(consumer)
    async with asyncio.timeout(30):
        for _ in range(count):
            yield await anext(records)


def test_what_was_handed_out_is_committed_after_a_pause_and_a_resume(cluster: Cluster) -> None:
    topic = cluster.topic()
    count = fill(cluster, topic, 10)
    with cluster.consumer(topic) as consumer:
        consumer.subscribe(topic)
        read(consumer, count)
        consumer.pause()
        consumer.resume()
        assert {consumer.position(partition) for partition in consumer.assignment()} == {10}
        assert sum(offset for part in consumer.transaction_offsets() for offset, _ in part.offsets.values()) == count
        consumer.commit()
        assert set(consumer.committed(consumer.assignment()).values()) == {10}


def test_a_level_that_rested_knows_how_far_it_was_read(cluster: Cluster) -> None:
    topic = cluster.topic(levels=1)
    count = fill(cluster, topic, 20, levels=1)
    config = cluster.consumer_config(topic)
    kafka = {key: value for key, value in config.items() if not key.startswith(("max.p", "levels"))}
    level = LevelConsumer([0], kafka, (key_reader(None), value_reader(None)))
    level.subscribe(GroupSubscription({0: LevelSubscription([f"{topic}-0"], "-0")}), Silent())
    records: list[ConsumerRecord] = []

    def fetch() -> None:
        records.extend(level.fetch(0, 100, time.monotonic()))
        if len(records) < count:
            wake.wait(0.1)

    with contextlib.closing(Wakeup()) as wake:
        level.client.wake_with(wake)
        do_until(lambda: len(records) == count, fetch)
        level.client.wake_with(None)
    level.serve(time.monotonic() + 1)
    assert level.is_parked  # nothing was asked of it for a second
    assert level.fetch(0, 100, time.monotonic() + 1) == []
    positions = level.positions()
    level.close()
    assert set(positions.values()) == {20}


def test_a_member_that_was_handed_nothing_leaves_behind_where_it_waited(cluster: Cluster) -> None:
    """Else the next one begins at an end behind what came between them, with auto.offset.reset=latest."""
    topic = cluster.topic()
    settings = {"auto.offset.reset": "latest", "enable.auto.commit": True}
    with made_by("headway.kafka.consumer.level_consumers.LevelConsumers") as made:
        first = cluster.consumer(topic, **settings)
    with first:
        first.subscribe(topic)
        until(first, lambda: len(made[0].positions()) == LEVELS * PARTITIONS)
    count = fill(cluster, topic, 1)
    with cluster.consumer(topic, **settings) as second:
        second.subscribe(topic)
        assert len(read(second, count)) == count


@pytest.mark.parametrize("error", [16, 15, 14], ids=["not coordinator", "not available", "loading"])
def test_partitions_are_read_though_their_committed_offsets_could_not_be_had_at_first(error: int) -> None:
    with mock_brokers() as brokers:
        brokers.create("orders-0")
        cluster = Cluster(brokers.bootstrap_servers, lambda names: None)
        fill(cluster, "orders", 5, levels=1)
        brokers.refuse(_OFFSET_FETCH, error, times=3)
        with cluster.consumer("g", **_COOPERATIVE, levels=1) as consumer:
            consumer.subscribe("orders")
            assert len(read(consumer, 5 * PARTITIONS)) == 5 * PARTITIONS


def test_a_seek_needs_no_committed_offset(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    count = fill(kafka_cluster, topic, 5)
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        proxy.hold(_OFFSET_FETCH)  # until the end
        with kafka_cluster.consumer(topic, **{"bootstrap.servers": proxy.bootstrap_servers}) as consumer:
            consumer.subscribe(topic)
            until(consumer, lambda: len(consumer.assignment()) == LEVELS * PARTITIONS)
            consumer.seek_to_beginning()
            assert len(read(consumer, count)) == count
            proxy.hold()


@pytest.mark.kafka
@pytest.mark.parametrize("settings", [_EAGER, _COOPERATIVE, _CONSUMER_PROTOCOL], ids=["eager", "cooperative", "kip848"])
def test_a_level_that_joins_anew_has_lost_its_partitions_and_reads_on_from_what_is_committed(
    kafka_cluster: Cluster, settings: dict[str, Any]
) -> None:
    topic = kafka_cluster.topic()
    count = fill(kafka_cluster, topic, 10)
    told: list[tuple[str, int]] = []
    config = kafka_cluster.consumer_config(topic) | settings
    if "group.protocol" in settings:
        del config["heartbeat.interval.ms"], config["session.timeout.ms"]
    with made_by("headway.kafka.consumer.level_consumers.LevelConsumers") as made:
        consumer = PriorityConsumer(config, policy="fair")
    with consumer:
        consumer.subscribe(
            topic,
            on_assign=lambda partitions: told.append(("assigned", len(partitions))),
            on_revoke=lambda partitions: told.append(("revoked", len(partitions))),
            on_lost=lambda partitions: told.append(("lost", len(partitions))),
        )
        first = read(consumer, count)
        consumer.commit()
        told.clear()
        made[0][1].membership.rejoin()
        assert told == [("lost", PARTITIONS)]
        assert {partition.level for partition in consumer.assignment()} == {0, 2}
        fill(kafka_cluster, topic, 1)
        second = read(consumer, LEVELS * PARTITIONS)
        assert len({place(record) for record in first + second}) == count + LEVELS * PARTITIONS
        assert told == [("lost", PARTITIONS), ("assigned", PARTITIONS)]


@pytest.mark.kafka
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "settings",
    [{"heartbeat.interval.ms": 30_000, "session.timeout.ms": 60_000}, {"group.protocol": "consumer"}],
    ids=["classic", "consumer"],
)
def test_a_level_that_was_expelled_unheard_joins_again_once_when_a_commit_tells(
    kafka_cluster: Cluster, settings: dict[str, Any], asynchronous: bool
) -> None:
    topic = kafka_cluster.topic()
    count = fill(kafka_cluster, topic, 5)
    told: list[str] = []
    config = kafka_cluster.consumer_config(topic)
    if "group.protocol" in settings:
        del config["heartbeat.interval.ms"], config["session.timeout.ms"]
    with PriorityConsumer(config | settings, policy="fair") as consumer:
        consumer.subscribe(topic, on_assign=lambda _: told.append("assigned"), on_lost=lambda _: told.append("lost"))
        read(consumer, count)
        expel(kafka_cluster.config({}), f"{topic}-1")
        told.clear()
        again: list[ConsumerRecord] = []
        if asynchronous:
            consumer.commit(asynchronous=True)
            # The poll that hears of the loss may join again, and return the records, too.
            again = until(consumer, lambda: "lost" in told)
        else:
            with pytest.raises(KafkaError, match=r"[Uu]nknown member"):
                consumer.commit()
        again += read(consumer, 5 * PARTITIONS - len(again))
        assert told == ["lost", "assigned"]
        assert {record.level for record in again} == {1}
        consumer.commit()
        assert set(consumer.committed(consumer.assignment()).values()) == {5}
        closing = time.monotonic()
    assert time.monotonic() - closing < 20  # whoever keeps the refusal keeps nothing that librdkafka waits for


def group_shares(cluster: Cluster, group: str) -> "Future[None]":
    """Tell when the group's coordinator means two members to share its partitions."""

    def wait() -> None:
        admin, deadline = AdminClient(cluster.config({"log_level": 0})), time.monotonic() + 30
        while time.monotonic() < deadline:
            members = admin.describe_consumer_groups([group])[group].result(20).members
            targets = [len(each.target_assignment.topic_partitions) for each in members if each.target_assignment]
            if targets == [PARTITIONS // 2] * 2:
                return
            threading.Event().wait(0.05)

    return in_background(wait)


@pytest.mark.kafka
def test_a_member_that_missed_a_heartbeats_answer_reads_on_what_it_was_given(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-848: an answer that is later than the heartbeat interval, a second here, is lost for good in librdkafka."""
    topic = kafka_cluster.topic()
    config = kafka_cluster.consumer_config(topic) | _CONSUMER_PROTOCOL | {"levels": 1, "log_level": 2}
    del config["heartbeat.interval.ms"], config["session.timeout.ms"]
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        behind = PriorityConsumer(config | {"bootstrap.servers": proxy.bootstrap_servers}, policy="fair")
        other = PriorityConsumer(config, policy="fair")
        with behind, other:
            behind.subscribe(topic)
            until(behind, lambda: len(behind.assignment()) == PARTITIONS)
            # What tells it to give two up comes, in the next answers, too late.
            proxy.hold(_CONSUMER_GROUP_HEARTBEAT)
            other.subscribe(topic)
            shared, since = group_shares(kafka_cluster, f"{topic}-0"), time.monotonic()
            while not shared.done() or time.monotonic() < since + 2.5:
                since = since if shared.done() else time.monotonic()
                behind.poll(0.02)
                other.poll(0.02)
            proxy.hold()
            do_until(
                lambda: len(behind.assignment()) == len(other.assignment()) == PARTITIONS // 2,
                lambda: (behind.poll(0.02), other.poll(0.02)),
            )
    assert "has missed an assignment of its group" in caplog.text


@pytest.mark.kafka
def test_a_member_that_missed_the_first_partitions_that_it_was_given_joins_anew(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-848: it is a member by then, and was never told of any partition."""
    topic = kafka_cluster.topic()
    config = kafka_cluster.consumer_config(topic) | _CONSUMER_PROTOCOL | {"levels": 1, "log_level": 2}
    del config["heartbeat.interval.ms"], config["session.timeout.ms"]
    with KafkaProxy(kafka_cluster.bootstrap_servers) as proxy:
        behind = PriorityConsumer(config | {"bootstrap.servers": proxy.bootstrap_servers}, policy="fair")
        other = PriorityConsumer(config, policy="fair")
        with behind, other:
            other.subscribe(topic)
            until(other, lambda: len(other.assignment()) == PARTITIONS)
            behind.subscribe(topic)
            shared = group_shares(kafka_cluster, f"{topic}-0")
            until(behind, shared.done)  # it has joined, and the other one has not given anything up
            proxy.hold(_CONSUMER_GROUP_HEARTBEAT)
            until(other, lambda: len(other.assignment()) == PARTITIONS // 2)
            until(behind, lambda: "has missed an assignment of its group" in caplog.text)
            assert not behind.assignment()
            proxy.hold()
            do_until(lambda: len(behind.assignment()) == PARTITIONS // 2, lambda: (behind.poll(0.02), other.poll(0.02)))


def test_commits_in_a_callback_while_closing_are_those_of_its_level(cluster: Cluster) -> None:
    topic = cluster.topic()
    count = fill(cluster, topic, 5)
    failures: list[Exception] = []
    with cluster.consumer(topic) as consumer:

        def commit(partitions: list[TopicPartition]) -> None:
            try:
                consumer.commit()
            except HeadwayError as error:
                failures.append(error)

        consumer.subscribe(topic, on_revoke=commit)
        read(consumer, count)
        partitions = consumer.assignment()
    assert failures == []
    with cluster.consumer(topic) as other:
        other.subscribe(topic)
        assert set(other.committed(partitions).values()) == {5}


@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe", "subscribe"])
def test_what_would_fetch_within_a_fetch_is_refused_in_a_callback(mock_cluster: Cluster, call: str) -> None:
    topic = mock_cluster.topic()
    count = fill(mock_cluster, topic, 2)
    with mock_cluster.consumer(topic) as consumer:
        calls: dict[str, Callable[[], object]] = {
            "poll": lambda: consumer.poll(0),
            "close": consumer.close,
            "unsubscribe": consumer.unsubscribe,
            "subscribe": lambda: consumer.subscribe("others"),
        }
        consumer.subscribe(topic, on_assign=lambda _: calls[call]())
        records: list[ConsumerRecord] = []
        refusals: list[str] = []
        while len(records) < count:
            try:
                records += consumer.poll(1)
            except HeadwayError as error:
                refusals.append(str(error))
        assert len(refusals) == LEVELS
        assert all(f"{call}() was called in a rebalance callback" in refusal for refusal in refusals)
