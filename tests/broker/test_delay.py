"""Delayed delivery on a real Apache Kafka: what arrives, when, and what becomes of what cannot."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from headway import Ladder, Settled
from headway.broker import LocalBroker
from headway.core.schedules import HEADER
from headway.delay.topics import create_topics
from headway.errors import ConfigError, NoRelayError
from tests.broker.delay_cluster import DelayCluster, wait_until


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


def assert_not_early(messages: list, dues: dict[bytes, float], latest: float = 2.0) -> None:  # type: ignore[type-arg]
    for message in messages:
        late = message.timestamp()[1] / 1000 - dues[message.key()]
        assert 0 <= late + 1e-9 < latest


@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_records_arrive_once_byte_for_byte_and_never_early(cluster: DelayCluster, mode: str) -> None:
    headers = [("a", b"\x00\xff"), ("a", None), ("b", "text")]
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        handles = [
            scheduler.send_later(b"%d" % i, bytes([i]) * i, cluster.target, 0.01 * i, headers=headers)
            for i in range(200)
        ]
        found = cluster.wait_for(200)
        time.sleep(0.3)
    assert len(cluster.read()) == 200
    assert_not_early(found, {b"%d" % i: handle.due for i, handle in enumerate(handles)})
    for message in found:
        number = int(message.key())
        assert message.value() == bytes([number]) * number
        assert message.headers() == [("a", b"\x00\xff"), ("a", None), ("b", b"text")]


def test_a_megabyte_arrives_and_so_does_nothing(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        scheduler.send_later("big", b"x" * 1_000_000, cluster.target, 1.2)
        scheduler.send_later(None, None, cluster.target, 0.2)
        scheduler.send_later("", b"", cluster.target, -5)
        found = {message.key(): message for message in cluster.wait_for(3)}
    assert found[b"big"].value() == b"x" * 1_000_000
    assert found[None].value() is None
    assert found[b""].value() == b""
    assert found[b""].headers() is None


def test_level_and_partition_are_those_asked_for(cluster: DelayCluster) -> None:
    cluster.create_target(f"{cluster.target}-2", partitions=3)
    with cluster.scheduler() as scheduler, cluster.relay():
        for number in range(3):
            scheduler.send_later("k", b"v", cluster.target, 0.1, priority=2, partition=number)
        found = cluster.wait_for(3, f"{cluster.target}-2")
    assert sorted(message.partition() for message in found) == [0, 1, 2]


def test_one_key_and_one_due_time_keep_their_order(cluster: DelayCluster) -> None:
    due = datetime.now(UTC) + timedelta(seconds=5)
    with cluster.scheduler() as scheduler:
        for number in range(300):
            scheduler.send_later("k", b"%d" % number, cluster.target, due)
            if number % 50 == 0:
                time.sleep(0.3)
        scheduler.flush()
        wait_until(lambda: datetime.now(UTC) > due)
        with cluster.relay():
            found = cluster.wait_for(300)
    assert [int(message.value()) for message in found] == list(range(300))


def test_times_without_a_zone_and_our_own_header_are_refused(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        with pytest.raises(ConfigError, match="has no time zone"):
            scheduler.send_later("k", b"v", cluster.target, datetime(2030, 1, 1))
        with pytest.raises(ConfigError, match="is the scheduler's own"):
            scheduler.send_later("k", b"v", cluster.target, 1, headers=[(HEADER, b"{}")])
        with pytest.raises(ConfigError, match="is no handle"):
            scheduler.cancel("nonsense")


def test_a_cancelled_record_does_not_arrive_and_a_delivered_one_is_said_to_be(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        gone = scheduler.send_later("gone", b"v", cluster.target, 3)
        there = scheduler.send_later("there", b"v", cluster.target, 0.1)
        cluster.wait_for(1)
        assert scheduler.cancel(gone) is Settled.CANCELLED
        assert scheduler.cancel(str(gone)) is Settled.CANCELLED
        assert scheduler.cancel(there) is Settled.DELIVERED
        assert scheduler.reschedule(gone, 1) is Settled.CANCELLED
        time.sleep(3.2)
        assert [message.key() for message in cluster.read()] == [b"there"]


def test_a_reschedule_moves_to_both_sides_and_the_later_wins(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        sooner = scheduler.send_later("sooner", b"v", cluster.target, 3600)
        later = scheduler.send_later("later", b"v", cluster.target, 1)
        scheduler.flush()
        assert scheduler.reschedule(later, 4) is Settled.RESCHEDULED
        assert scheduler.reschedule(sooner, 20) is Settled.RESCHEDULED
        began = time.time()
        assert scheduler.reschedule(sooner, 2) is Settled.RESCHEDULED
        found = {message.key(): message.timestamp()[1] / 1000 - began for message in cluster.wait_for(2)}
        assert 2 <= found[b"sooner"] < 3.5
        assert 3 <= found[b"later"] < 5
        time.sleep(0.5)
        assert len(cluster.read()) == 2


def test_without_a_relay_a_cancellation_says_so_and_is_settled_by_the_next_one(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        handle = scheduler.send_later("k", b"v", cluster.target, 1)
        with pytest.raises(NoRelayError, match=r"No relay has answered within 0\.5"):
            scheduler.cancel(handle, timeout=0.5)
        with cluster.relay():
            assert scheduler.cancel(handle) is Settled.CANCELLED
        assert cluster.read() == []


def test_a_damaged_header_and_a_missing_target_become_dead_letters(cluster: DelayCluster) -> None:
    import confluent_kafka as ck  # noqa: PLC0415 - forges what no client of ours writes

    producer = ck.Producer(cluster.config)
    producer.produce(cluster.names.line(0), b"v", b"forged", partition=0, headers=[(HEADER, b'{"due": 1')])
    producer.produce(cluster.names.line(1000), b"v", b"bare", partition=0)
    producer.flush()
    producer.close()
    with cluster.scheduler() as scheduler, cluster.relay():
        scheduler.send_later("lost", b"v", "no-such-topic", 0.1)
        scheduler.send_later("fine", b"v", cluster.target, 0.2)
        letters = cluster.dead_letters(3)
        cluster.wait_for(1)
    messages = sorted(letter["headway.error.message"] for letter in letters)
    assert messages[0].startswith(b"The header headway.delay cannot be read")
    assert messages[1] == b"The record has no header headway.delay."
    assert messages[2] == b"The topic no-such-topic of a schedule does not exist."


@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_what_the_target_refuses_becomes_a_dead_letter_and_the_others_arrive(cluster: DelayCluster, mode: str) -> None:
    small = f"{cluster.target}-small"
    cluster.create_target(small, settings={"max.message.bytes": "1000"})
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        for number in range(20):
            scheduler.send_later(f"{number}", b"x" * (2000 if number == 7 else 10), small, 0.5)
        found = cluster.wait_for(19, small)
        [letter] = cluster.dead_letters(1)
    assert sorted(int(message.key()) for message in found) == [n for n in range(20) if n != 7]
    assert b"was refused" in letter["headway.error.message"]


def test_a_recurring_record_comes_until_it_is_cancelled(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        handle = scheduler.every(0.5, "k", b"v", cluster.target)
        cluster.wait_for(3)
        assert scheduler.cancel(handle) is Settled.CANCELLED
        count = len(cluster.read())
        time.sleep(1.2)
        assert len(cluster.read()) == count


def test_other_lines_lose_and_double_nothing_that_is_pending(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        dues = {
            b"old %d" % i: scheduler.send_later(b"old %d" % i, b"v", cluster.target, 0.05 * i).due for i in range(160)
        }
    with cluster.relay():
        cluster.wait_for(5)
    create_topics(cluster.config, cluster.name, Ladder((1000, 3000)))
    with cluster.scheduler() as scheduler, cluster.relay():
        dues |= {
            b"new %d" % i: scheduler.send_later(b"new %d" % i, b"v", cluster.target, 0.05 * i).due for i in range(100)
        }
        found = cluster.wait_for(260)
        time.sleep(0.5)
    assert len(cluster.read()) == 260
    assert_not_early(found, dues, latest=30)


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_relays_clock_changes_nothing(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        dues = {b"%d" % i: scheduler.send_later(b"%d" % i, b"v", cluster.target, 1 + 0.02 * i).due for i in range(100)}
        scheduler.flush()
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + step)
        found = cluster.wait_for(100)
    assert_not_early(found, dues)
