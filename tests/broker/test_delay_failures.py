"""Delayed delivery through deaths: of relays, of brokers, of what a group has committed."""

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from headway import Relay, Settled
from headway.broker import LocalBroker
from headway.delay.relay import exactly_once, producers
from headway.delay.relay.exactly_once import ExactlyOnce
from headway.delay.relay.low_latency import LowLatency
from headway.delay.relay.output import Mode
from headway.delay.topics import read_layout
from headway.errors import ClosedError, KafkaError
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.transactional_writer import TransactionalWriter
from tests.broker.delay_cluster import MISSED_SOON, DelayCluster, wait_until
from tests.compacted import read_compacted
from tests.membership import expel


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


def schedule_over(cluster: DelayCluster, count: int, seconds: float) -> dict[bytes, int]:
    """Records that come due over the next seconds, and when, in milliseconds."""
    with cluster.scheduler() as scheduler:
        handles = {
            b"%d" % i: scheduler.send_later(b"%d" % i, b"v", cluster.target, seconds * i / count) for i in range(count)
        }
    return {key: round(handle.due * 1000) for key, handle in handles.items()}


def assert_exactly_once(cluster: DelayCluster, dues: dict[bytes, int], within: float = 60) -> None:
    found = cluster.wait_for(len(dues), within=within)
    assert sorted(message.key() for message in found) == sorted(dues)
    assert all(message.timestamp()[1] >= dues[message.key()] for message in found)


@pytest.mark.slow
def test_relays_that_are_killed_at_any_moment_lose_and_double_nothing(cluster: DelayCluster) -> None:
    draw = random.Random(1)
    dues = schedule_over(cluster, 2000, 14)
    end = time.monotonic() + 14
    relays = [cluster.relay_process()]
    while time.monotonic() < end:
        time.sleep(draw.uniform(0.8, 2.0))
        if len(relays) > 1:
            victim = relays.pop(draw.randrange(len(relays)))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
        relays.append(cluster.relay_process())
    try:
        assert_exactly_once(cluster, dues)
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()


@pytest.mark.slow
def test_a_relay_that_was_frozen_and_comes_back_delivers_nothing_twice(cluster: DelayCluster) -> None:
    dues = schedule_over(cluster, 1000, 6)
    frozen = cluster.relay_process()
    try:
        cluster.wait_for(100)
        frozen.send_signal(signal.SIGSTOP)  # perhaps within a transaction
        with cluster.relay() as other:
            wait_until(lambda: len(other.partitions) == 2)
            cluster.wait_for(400)
            frozen.send_signal(signal.SIGCONT)
            assert_exactly_once(cluster, dues)
    finally:
        frozen.kill()
        frozen.wait()


@pytest.mark.quick("exactly-once")
@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_relays_that_join_and_leave_lose_and_double_nothing(cluster: DelayCluster, mode: str) -> None:
    dues = schedule_over(cluster, 1500, 5)
    with cluster.relay(mode=mode) as first:
        cluster.wait_for(100)
        with cluster.relay(mode=mode) as second:
            wait_until(lambda: len(first.partitions) == len(second.partitions) == 1)
            cluster.wait_for(600)
            with cluster.relay(mode=mode):  # for which there is nothing left to do
                cluster.wait_for(1000)
        wait_until(lambda: len(first.partitions) == 2)
        assert_exactly_once(cluster, dues)


@pytest.mark.slow
def test_a_commit_that_fails_while_the_next_round_is_written_loses_and_doubles_nothing(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, committed, failed = threading.Condition(), itertools.count(1), list[str]()
    writing: ProducerClient | None = None
    ids: dict[ProducerClient, str] = {}
    attempt, commit, fenced = TransactionalWriter.write, producers.commit, producers.fenced

    def note_attempt(writer: TransactionalWriter, *args: Any, **named: Any) -> Any:
        nonlocal writing
        with writes:
            writing = writer.client
            writes.notify()
        return attempt(writer, *args, **named)

    def note_id(config: Mapping[str, Any], transactional_id: str, topic: str) -> ProducerClient:
        client = fenced(config, transactional_id, topic)
        ids[client] = transactional_id
        return client

    def next_round_begins(client: ProducerClient) -> bool:
        with writes:
            return writes.wait_for(lambda: writing is not client, 0.2)  # none does where nothing is due

    def commit_or_fail(writer: TransactionalWriter, *args: Any) -> None:
        if len(failed) < 3 and next(committed) % 5 == 0 and next_round_begins(writer.client):
            producers.end_transactions(cluster.config, [ids[writer.client]], cluster.names.state)
            failed.append(ids[writer.client])
        commit(writer, *args)

    monkeypatch.setattr(TransactionalWriter, "write", note_attempt)
    monkeypatch.setattr(exactly_once, "fenced", note_id)
    monkeypatch.setattr(exactly_once, "commit", commit_or_fail)
    with cluster.relay() as relay:
        wait_until(lambda: len(relay.partitions) == 2 and relay.ready)
        dues = schedule_over(cluster, 2000, 6)
        assert_exactly_once(cluster, dues)
    assert failed


@pytest.mark.slow
def test_a_store_that_fails_while_partitions_are_handed_over_does_not_keep_the_relay_out(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, subscribe, failed = ExactlyOnce.finish, RelayConsumer.subscribe, threading.Event()
    handing_over: set[int] = set()

    def note_hand_overs(consumer: RelayConsumer, topics: list[str], before_leaving: Callable[[], None]) -> None:
        def hand_over() -> None:
            handing_over.add(threading.get_ident())
            before_leaving()
            handing_over.clear()

        subscribe(consumer, topics, hand_over)

    def fail_once(carrier: ExactlyOnce) -> None:
        if threading.get_ident() in handing_over and not failed.is_set():
            failed.set()
            raise KafkaError("The broker is away.")
        finish(carrier)

    monkeypatch.setattr(RelayConsumer, "subscribe", note_hand_overs)
    with cluster.relay() as first:
        wait_until(lambda: len(first.partitions) == 2)
        monkeypatch.setattr(ExactlyOnce, "finish", fail_once)
        with cluster.relay() as second:
            wait_until(lambda: len(first.partitions) == len(second.partitions) == 1)
            assert failed.is_set()
            assert_exactly_once(cluster, schedule_over(cluster, 200, 2))


@pytest.mark.slow
def test_what_brokers_have_not_taken_yet_is_bounded_with_low_latency(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, carry_out = [0], LowLatency.carry_out

    def note(carrier: LowLatency, *args: Any) -> None:
        assert carrier.under_way < 2**21
        carry_out(carrier, *args)
        most.append(carrier.under_way)

    monkeypatch.setattr(LowLatency, "carry_out", note)
    with cluster.scheduler() as scheduler:
        due = time.time() + 3
        for number in range(20_000):
            scheduler.send_later(str(number), b"x" * 1_000, cluster.target, datetime.fromtimestamp(due, UTC))
    with cluster.relay(mode="low-latency", memory=2**22):
        wait_until(lambda: len(cluster.read()) == 20_000)
    assert 2**20 < max(most) < 2**25  # which is half the room and one turn of two partitions: 5,000 records each


def test_a_group_whose_offsets_have_expired_loses_and_doubles_nothing(cluster: DelayCluster) -> None:
    dues = schedule_over(cluster, 600, 3)
    with cluster.relay():
        cluster.wait_for(200)
    cluster.admin.delete_consumer_groups([cluster.name])[cluster.name].result(30)
    [gone] = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(cluster.name)]).values()
    assert gone.result(30).topic_partitions in (None, [])
    with cluster.relay():
        assert_exactly_once(cluster, dues)
    assert len(cluster.read()) == 600


@pytest.mark.slow
def test_what_came_due_while_no_relay_ran_is_delivered_when_one_does(cluster: DelayCluster) -> None:
    dues = schedule_over(cluster, 500, 2)
    with cluster.scheduler() as scheduler:
        cancelled = scheduler.send_later("cancelled", b"v", cluster.target, 1)
        wait_until(lambda: time.time() * 1000 > max(dues.values()) + 200)
        with cluster.relay():
            assert_exactly_once(cluster, dues | {b"cancelled": round(cancelled.due * 1000)})
            assert scheduler.cancel(cancelled).settled() is Settled.DELIVERED


@pytest.mark.slow
def test_a_relay_that_is_stopped_for_longer_than_any_retention_loses_nothing(tmp_path: Path) -> None:
    soon = {"log.retention.ms": "500", "log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
    with LocalBroker(data_dir=tmp_path / "broker", ephemeral=True, properties=soon) as broker:
        cluster = DelayCluster(broker.bootstrap_servers)
        cluster.create_target("kept-as-the-broker-says")
        cluster.create_target("delivered", settings={"retention.ms": "-1"})
        cluster.target = "delivered"
        dues = schedule_over(cluster, 200, 3)
        cluster.put("kept-as-the-broker-says", b"k", b"v", [])
        wait_until(lambda: cluster.first_offset(TopicPartition("kept-as-the-broker-says", 0)) == 1)
        wait_until(lambda: time.time() * 1000 > max(dues.values()))
        with cluster.relay():
            assert_exactly_once(cluster, dues)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_a_flood_due_in_one_instant_arrives_once_and_in_order_of_its_keys(cluster: DelayCluster, mode: str) -> None:
    due = datetime.now(UTC) + timedelta(seconds=7)
    with cluster.scheduler() as scheduler:
        for number in range(10_000):
            scheduler.send_later(b"%d" % (number % 7), b"%d" % number, cluster.target, due)
    wait_until(lambda: time.time() > due.timestamp() - 0.9)  # so that all go from one delay topic to memory
    with cluster.relay(mode=mode):
        found = cluster.wait_for(10_000)
    assert min(message.timestamp()[1] for message in found) >= due.timestamp() * 1000
    numbers: dict[bytes, list[int]] = {}
    for message in found:
        numbers.setdefault(message.key(), []).append(int(message.value()))
    assert numbers == {b"%d" % key: list(range(key, 10_000, 7)) for key in range(7)}


def test_what_ends_a_relay_beside_a_program_is_raised_at_the_end_of_the_block(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(consumer: RelayConsumer) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RelayConsumer, "check", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"), cluster.relay() as relay:
        wait_until(lambda: "The relay has stopped and no longer delivers anything: a bug" in caplog.text)
    with pytest.raises(ClosedError):
        relay.run()


def test_what_has_left_a_line_is_deleted(cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.delay.relay.deletions.DELETE_EVERY", 0.2)
    schedule_over(cluster, 200, 0.5)
    with cluster.relay():
        cluster.wait_for(200)
        place = TopicPartition(cluster.names.delay_topic(0), 0)
        wait_until(lambda: cluster.first_offset(place) > 50)


@pytest.mark.slow
def test_cancellations_are_settled_through_kills(cluster: DelayCluster) -> None:
    draw = random.Random(2)
    relays = [cluster.relay_process(), cluster.relay_process()]
    settled: dict[bytes, Settled] = {}
    try:
        with cluster.scheduler() as scheduler:
            handles = {
                b"%d" % i: scheduler.send_later(b"%d" % i, b"v", cluster.target, 4 + i * 0.02) for i in range(400)
            }
            scheduler.flush()
            for _ in range(4):
                asked = {key: scheduler.cancel(handles[key]) for key in draw.sample(sorted(handles), 30)}
                victim = relays.pop(0)
                victim.kill()
                victim.wait()
                relays.append(cluster.relay_process())
                for key, request in asked.items():
                    settled.setdefault(key, request.settled(90))
        cancelled = {key for key, outcome in settled.items() if outcome is Settled.CANCELLED}
        assert cancelled
        expected = {key: round(handle.due * 1000) for key, handle in handles.items() if key not in cancelled}
        wait_until(lambda: time.time() > 0.5 + max(expected.values()) / 1000)
        assert_exactly_once(cluster, expected)
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing() -> None:
    # Three: alone, Kafka 4.3 forgets the markers of a transaction that is being committed when it dies.
    with LocalBroker(nodes=3, properties=MISSED_SOON) as broker:
        cluster = DelayCluster(broker.bootstrap_servers)
        dues = schedule_over(cluster, 600, 8)
        with cluster.relay():
            cluster.wait_for(100)
            coordinator = cluster.admin.describe_consumer_groups([cluster.name])[cluster.name].result(30).coordinator
            node = next(node for node in broker.nodes if node.port == coordinator.port)
            node.kill()
            cluster.wait_for(300, within=60)
            node.start()
            assert_exactly_once(cluster, dues)


def test_a_relay_that_was_expelled_unheard_joins_again_and_delivers_once(cluster: DelayCluster) -> None:
    dues = schedule_over(cluster, 10, 0.5)
    hears_nothing = {"heartbeat.interval.ms": 30_000, "session.timeout.ms": 60_000}
    with Relay({**cluster.config, **hears_nothing}, name=cluster.name).running():
        assert_exactly_once(cluster, dues)
        expel(cluster.config, cluster.name)
        with cluster.scheduler() as scheduler:
            later = scheduler.send_later("later", b"v", cluster.target, 0.1)
        assert_exactly_once(cluster, dues | {b"later": round(later.due * 1000)}, within=15)


@pytest.mark.slow
def test_what_is_stored_is_not_taken_for_nothing_while_its_leader_is_away() -> None:
    with LocalBroker(nodes=3) as broker:
        cluster = DelayCluster(broker.bootstrap_servers, partitions=6)
        dues = schedule_over(cluster, 60, 1)
        with cluster.relay():
            assert_exactly_once(cluster, dues)

        def stored() -> object:
            state = read_compacted(cluster.config, cluster.names.state, range(6), 60)
            return state, read_layout(cluster.config, cluster.name)

        before = stored()
        ladder = cluster.admin.list_topics(timeout=10).topics[cluster.names.ladder].partitions[0]
        next(node for node in broker.nodes if node.id == ladder.leader).kill()  # which is missed after nine seconds
        assert stored() == before


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_records_of_one_key_and_due_time_keep_their_order_though_the_broker_stops_for_two_seconds(mode: Mode) -> None:
    with LocalBroker() as broker:
        cluster = DelayCluster(broker.bootstrap_servers)
        with cluster.relay(mode=mode), cluster.scheduler() as scheduler:
            scheduler.send_later(b"before", b"", cluster.target, 0)  # all have their connections, from then on
            cluster.wait_for(1)
            began = time.time()
            dues = {b"%d" % i: datetime.fromtimestamp(began + 2.9 + i / 240, UTC) for i in range(240)}

            def send(value: bytes) -> None:
                for key, due in dues.items():
                    scheduler.send_later(key, value, cluster.target, due)
                scheduler.flush()

            send(b"first")  # into the delay topic of two seconds, to be moved on when 1.9 have passed
            wait_until(lambda: time.time() >= began + 1)
            send(b"second")
            wait_until(lambda: time.time() >= began + 1.95)
            assert broker.nodes[0].pid  # without one psutil would stop the process of this test
            kafka = psutil.Process(broker.nodes[0].pid)
            kafka.suspend()
            time.sleep(2)
            kafka.resume()
            found = cluster.wait_for(1 + 2 * len(dues))
    values: dict[Any, list[Any]] = {}
    for message in found:
        values.setdefault(message.key(), []).append(message.value())
    del values[b"before"]
    assert values == {key: [b"first", b"second"] for key in dues}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_a_relay_goes_on_when_all_brokers_were_away(mode: Mode) -> None:
    with LocalBroker(properties=MISSED_SOON) as broker:
        cluster = DelayCluster(broker.bootstrap_servers)
        dues = schedule_over(cluster, 10, 0.5)
        # Its session lasts, so that nothing but a commit that fails tells it to begin anew.
        with Relay({**cluster.config, "session.timeout.ms": 45_000}, name=cluster.name, mode=mode).running():
            assert_exactly_once(cluster, dues)
            wait_until(lambda: not cluster.pending())  # with low latency it is stored a little later
            broker.nodes[0].kill()
            broker.nodes[0].start()
            with cluster.scheduler() as scheduler:
                later = scheduler.send_later("later", b"v", cluster.target, 0.1)
            assert_exactly_once(cluster, dues | {b"later": round(later.due * 1000)})
