"""Delayed delivery on a real Apache Kafka: what arrives, when, and what becomes of what cannot."""

import logging
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from headway import Ladder, Relay, Settled
from headway.broker import LocalBroker
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.schedule import HEADER, HandleParts, Schedule
from headway.delay.handle import ScheduleHandle
from headway.delay.topics import create_topics
from headway.errors import ConfigError, DeliveryError, KafkaError, NoRelayError, SerializationError
from headway.kafka.admin import Admin
from headway.kafka.producer.delivery import DeliveryFuture
from tests.broker.delay_cluster import LADDER, DelayCluster, wait_until
from tests.compacted import read_compacted


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


def assert_not_early(messages: list, dues: dict[bytes, float], latest: float = 25.0) -> None:  # type: ignore[type-arg]
    """Machines are busy, and lateness is for a benchmark; but no check of the delay topics (30 s) was waited for."""
    for message in messages:
        late = message.timestamp()[1] / 1000 - dues[message.key()]
        assert 0 <= late + 1e-9 < latest


@pytest.mark.quick("exactly-once")
@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_records_arrive_once_byte_for_byte_and_never_early(cluster: DelayCluster, mode: str) -> None:
    headers = [("a", b"\x00\xff"), ("a", None), ("b", "text")]
    with cluster.scheduler() as scheduler, cluster.relay(mode=mode):
        handles = [
            scheduler.send_later(b"%d" % i, bytes([i]) * i, cluster.target, 0.01 * i, headers=headers)
            for i in range(200)
        ]
        cluster.wait_for(200)
    found = cluster.read()
    assert len(found) == 200
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


@pytest.mark.slow
def test_the_largest_record_that_can_be_scheduled_can_be_moved_and_become_a_dead_letter(cluster: DelayCluster) -> None:
    large = f"{cluster.target}-large"
    cluster.create_target(large, settings={"max.message.bytes": "3000000"})

    def schedule_largest(topic: str, delay: float) -> ScheduleHandle:
        size = 2_100_000
        for step in (10_000, 100, 1):
            while True:
                try:
                    handle = scheduler.send_later("k", bytes(size), topic, delay)
                    handle.wait()
                    break
                except DeliveryError:
                    size -= step
            size += step
        return handle

    with cluster.scheduler() as scheduler, cluster.relay():
        moved = schedule_largest(large, 60)
        assert scheduler.reschedule(moved, 100).settled() is Settled.RESCHEDULED
        assert scheduler.reschedule(moved, 0).settled() is Settled.RESCHEDULED
        schedule_largest("no-such-topic", 0)
        cluster.wait_for(1, large)
        cluster.dead_letters(3)  # the search for the largest has found two smaller ones


def test_level_and_partition_are_those_asked_for(cluster: DelayCluster) -> None:
    cluster.create_target(f"{cluster.target}-2", partitions=3)
    with cluster.scheduler() as scheduler, cluster.relay():
        for number in range(3):
            scheduler.send_later("k", b"v", cluster.target, 0.1, level=2, partition=number)
        found = cluster.wait_for(3, f"{cluster.target}-2")
    assert sorted(message.partition() for message in found) == [0, 1, 2]


def test_one_key_and_one_due_time_keep_their_order(cluster: DelayCluster) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2.5)
    with cluster.scheduler() as scheduler:
        for number in range(300):
            if number % 100 == 0:  # each hundred goes to another delay topic
                wait_until(lambda left=2.4 - number / 100: datetime.now(UTC) > due - timedelta(seconds=left))  # type: ignore[misc]
            scheduler.send_later("k", b"%d" % number, cluster.target, due)
        scheduler.flush()
        wait_until(lambda: datetime.now(UTC) > due)
        with cluster.relay():
            found = cluster.wait_for(300)
    assert [int(message.value()) for message in found] == list(range(300))


def test_what_was_stored_long_after_it_was_scheduled_keeps_its_order(cluster: DelayCluster) -> None:
    now = round(time.time() * 1000)
    for number in range(6):  # the first three into a delay topic in which they would stay until after they are due
        ago, delay_topic = (1000, 2000) if number < 3 else (0, 1000)
        schedule = Schedule(f"{number}", now + 1600, now - ago, number, cluster.target)
        cluster.put(cluster.names.delay_topic(delay_topic), b"k", b"%d" % number, [schedule.header()])
    with cluster.relay():
        found = cluster.wait_for(6)
    assert [int(message.value()) for message in found] == list(range(6))


def test_what_could_only_become_a_dead_letter_is_refused_when_it_is_scheduled(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        with pytest.raises(ConfigError, match="The partition is -1; it must be a whole number, at least 0"):
            scheduler.send_later("k", b"v", cluster.target, 1, partition=-1)
        with pytest.raises(ConfigError, match="The topic is 'a b', which is not a topic name"):
            scheduler.send_later("k", b"v", "a b", 1)
        with pytest.raises(ConfigError, match="beyond the year 9999"):
            scheduler.every(timedelta(days=7980 * 365), "k", b"v", cluster.target)
        with pytest.raises(ConfigError, match=r"The rule is the time 2030-01-01.*which occurs only once"):
            scheduler.every(datetime(2030, 1, 1, tzinfo=UTC), "k", b"v", cluster.target)
        with pytest.raises(ConfigError, match="misfire is 'x'; it must be one of coalesce, fire, skip"):
            scheduler.every(60, "k", b"v", cluster.target, misfire="x")  # type: ignore[arg-type]
        scheduler.flush()
    assert cluster.pending() == []


def test_times_without_a_zone_and_our_own_header_are_refused(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        with pytest.raises(ConfigError, match="has no time zone"):
            scheduler.send_later("k", b"v", cluster.target, datetime(2030, 1, 1))
        with pytest.raises(ConfigError, match="is the scheduler's own"):
            scheduler.send_later("k", b"v", cluster.target, 1, headers=[(HEADER, b"{}")])
        with pytest.raises(ConfigError, match="is not a handle"):
            scheduler.cancel("nonsense")


def test_a_cancelled_record_does_not_arrive_and_a_delivered_one_is_said_to_be(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay() as relay:
        wait_until(lambda: len(relay.partitions) == 2 and relay.ready)  # it has its producers too
        gone = scheduler.send_later("k", b"gone", cluster.target, 6)
        there = scheduler.send_later("k", b"there", cluster.target, 0.1)
        cluster.wait_for(1)
        assert scheduler.cancel(gone).settled() is Settled.CANCELLED
        assert scheduler.cancel(str(gone)).settled() is Settled.CANCELLED
        assert scheduler.cancel(there).settled() is Settled.DELIVERED
        assert scheduler.reschedule(gone, 1).settled() is Settled.CANCELLED
        scheduler.send_later("k", b"after it", cluster.target, timedelta(seconds=gone.due + 0.1 - time.time()))
        assert [message.value() for message in cluster.wait_for(2)] == [b"there", b"after it"]


def test_a_reschedule_moves_to_both_sides_and_the_later_wins(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay() as relay:
        wait_until(lambda: len(relay.partitions) == 2 and relay.ready)
        sooner = scheduler.send_later("sooner", b"v", cluster.target, 3600)
        later = scheduler.send_later("later", b"v", cluster.target, 5)
        scheduler.flush()
        began = time.time()
        assert scheduler.reschedule(later, 7).settled() is Settled.RESCHEDULED
        assert scheduler.reschedule(sooner, 20).settled() is Settled.RESCHEDULED
        again = time.time()
        assert scheduler.reschedule(sooner, 1).settled() is Settled.RESCHEDULED
        cluster.wait_for(2)
    found = {message.key(): message.timestamp()[1] / 1000 for message in cluster.read()}
    assert len(cluster.read()) == len(found) == 2
    assert 1 <= found[b"sooner"] - again < 15  # and not the 20 s that were asked for first
    assert 7 <= found[b"later"] - began < 15


def test_without_a_relay_a_cancellation_says_so_and_is_settled_by_the_next_one(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        handle = scheduler.send_later("k", b"v", cluster.target, 5)  # not due before the relay has begun
        handle.wait(30)
        with pytest.raises(NoRelayError, match=r"No relay has answered within 0\.2"):
            scheduler.cancel(handle).settled(timeout=0.2)
        with cluster.relay():
            assert scheduler.cancel(handle).settled() is Settled.CANCELLED
            wait_until(lambda: time.time() > handle.due + 0.3)  # for what must not come
        assert cluster.read() == []


def test_a_damaged_header_and_a_missing_target_become_dead_letters(cluster: DelayCluster) -> None:
    cluster.put(cluster.names.delay_topic(0), b"forged", b"v", [(HEADER, b'{"due": 1')])
    cluster.put(cluster.names.delay_topic(1000), b"bare", b"v", [])
    with cluster.scheduler() as scheduler, cluster.relay():
        scheduler.send_later("lost", b"v", "no-such-topic", 0.1)
        scheduler.send_later("fine", b"v", cluster.target, 0.2)
        letters = cluster.dead_letters(3)
        cluster.wait_for(1)
    messages = sorted(letter["headway.error.message"] for letter in letters)
    assert messages[0] == b"A schedule is for the topic no-such-topic, which does not exist."
    assert messages[1].startswith(b"The header headway.delay cannot be read")
    assert messages[2] == b"The record has no header headway.delay."


@pytest.mark.quick("low-latency")
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


@pytest.mark.slow
def test_of_thousands_that_are_due_at_once_only_those_that_the_target_refuses_become_dead_letters(
    cluster: DelayCluster,
) -> None:
    small, count, bad = f"{cluster.target}-small", 3000, [0, 1700, 2999]
    cluster.create_target(small, settings={"max.message.bytes": "100000"})
    with cluster.scheduler() as scheduler:
        for number in range(count):
            scheduler.send_later(f"{number}", b"x" * (200_000 if number in bad else 10), small, 0.5)
    with cluster.relay():
        found = cluster.wait_for(count - len(bad), small)
        letters = cluster.dead_letters(len(bad))
    assert sorted(int(message.key()) for message in found) == [n for n in range(count) if n not in bad]
    assert all(b"was refused" in letter["headway.error.message"] for letter in letters)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])
def test_hundreds_that_the_target_refuses_keep_the_others_no_longer_than_a_few_do(
    cluster: DelayCluster, mode: str
) -> None:
    small, count = f"{cluster.target}-small", 3000
    cluster.create_target(small, settings={"max.message.bytes": "1000"})
    with cluster.scheduler() as scheduler:
        for number in range(count):
            scheduler.send_later(f"{number}", b"x" * (10 if number % 2 else 1000 + number), small, 0.5)
    with cluster.relay(mode=mode):
        found = cluster.wait_for(count // 2, small)
        cluster.dead_letters(count // 2)
    assert sorted(int(message.key()) for message in found) == list(range(1, count, 2))
    assert len(cluster.read(cluster.names.dead)) == count // 2


def test_a_recurring_record_comes_until_it_is_cancelled(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        handle = scheduler.every(0.2, "k", b"every 0.2 s", cluster.target)
        cluster.wait_for(3)
        assert scheduler.cancel(handle).settled() is Settled.CANCELLED
        count = len(cluster.read())
        after = scheduler.send_later("k", b"after it", cluster.target, 0.5)
        found = cluster.wait_for(count + 1)
    assert len(cluster.read()) == count + 1
    dues = [round(handle.due * 1000) + 200 * i for i in range(count)] + [round(after.due * 1000)]
    assert all(message.timestamp()[1] >= due for message, due in zip(found, dues, strict=True))  # late ones may bunch


def test_a_cron_expression_fires_and_goes_on_from_where_it_was_moved_to(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        handle = scheduler.every("0 17 * * *", "k", b"v", cluster.target, zone="Europe/Berlin")
        first = datetime.fromtimestamp(handle.due, ZoneInfo("Europe/Berlin"))
        assert (first.hour, first.minute, first.second) == (17, 0, 0)
        assert scheduler.reschedule(handle, 0.3).settled() is Settled.RESCHEDULED
        cluster.wait_for(1)
        following = wait_until(lambda: [each for each in cluster.pending() if each.message.key() == b"k"])
        assert {each.due / 1000 for each in following} <= {handle.due, handle.due + 86_400}
        assert scheduler.cancel(handle).settled() is Settled.CANCELLED
    assert len(cluster.read()) == 1


@pytest.mark.slow
def test_a_relay_without_data_about_a_time_zone_says_what_to_install_and_drops_nothing(
    cluster: DelayCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(key: str) -> None:
        raise ZoneInfoNotFoundError(key)

    with cluster.scheduler() as scheduler:
        berlin = scheduler.every("0 5 1 1 *", "berlin", b"", cluster.target, zone="Europe/Berlin")
        utc = scheduler.every("0 5 1 1 *", "utc", b"", cluster.target)
        scheduler.flush()
        with monkeypatch.context() as patch, cluster.relay():
            patch.setattr("headway.core.delay.recurrence.ZoneInfo", unknown)
            for handle in (berlin, utc):
                assert scheduler.reschedule(handle, 0.2).settled() is Settled.RESCHEDULED
            cluster.wait_for(2)
            wait_until(lambda: "'Europe/Berlin'" in caplog.text)
            wait_until(lambda: len(cluster.pending()) == 2)
            assert scheduler.reschedule(berlin, 1).settled() is Settled.RESCHEDULED
            cluster.wait_for(3)
        with cluster.relay():
            assert scheduler.reschedule(berlin, 0.2).settled() is Settled.RESCHEDULED
            cluster.wait_for(4)
            wait_until(lambda: all(each.due > (time.time() + 3600) * 1000 for each in cluster.pending()))
    assert "pip install --upgrade tzdata" in caplog.text
    assert caplog.text.count("about the time zone 'Europe/Berlin'") == 1
    assert cluster.read(cluster.names.dead) == []
    assert len(cluster.pending()) == 2


@pytest.mark.slow
def test_each_record_of_a_recurring_schedule_expires_some_time_after_its_own_time(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        for wrong in (0, -1, float("nan"), True, 1e13):
            with pytest.raises(ConfigError, match="expires_after is"):
                scheduler.every(1.0, b"k", b"v", cluster.target, expires_after=wrong)
        handle = scheduler.every(1.0, b"k", b"v", cluster.target, expires_after=600, headers=[("a", b"1")])
        handle.wait()
        cluster.wait_for(2)
    found = [message.headers()[-2:] for message in cluster.read()]
    expected = round(handle.due * 1000) + 600_000
    assert all(headers[0] == ("a", b"1") and headers[1][0] == "headway.expires" for headers in found)
    expiries = sorted(int(headers[1][1]) for headers in found)
    assert expiries[0] == expected
    assert len(set(expiries)) == len(expiries)  # each its own; a late one stands for those that it missed
    assert all((at - expected) % 1000 == 0 for at in expiries)


@pytest.mark.slow
def test_after_an_hour_without_a_relay_recurring_records_fire_as_their_policies_say(cluster: DelayCluster) -> None:
    wait_until(lambda: time.time() % 60 < 40)  # so that the next minute does not begin within the test
    minute = int(time.time() // 60) * 60_000
    missed = minute - 59 * 60_000  # the first of sixty times
    expected = {"coalesce": 1, "fire": 60, "skip": 10}
    rules: dict[str, dict[str, Any]] = {"interval": {"interval": 60_000}, "cron": {"cron": "* * * * *"}}
    for (misfire, _), (rule, fields) in product(expected.items(), rules.items()):
        recurrence = Recurrence(**fields, misfire=misfire, older_than=600_000 - 1)
        schedule = Schedule(f"{misfire} {rule}", missed, missed - 60_000, 0, cluster.target, recurrence=recurrence)
        cluster.put(cluster.names.delay_topic(0), misfire.encode(), b"v", [schedule.header()])
    with cluster.relay():
        cluster.wait_for(2 * sum(expected.values()))
    fired = Counter(message.key().decode() for message in cluster.read())
    assert fired == {misfire: 2 * times for misfire, times in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("ladder", [Ladder((1000, 3000)), Ladder((1000, 4000))], ids=["another line", "fewer lines"])
def test_running_relays_take_up_other_lines_and_lose_double_and_delay_nothing(
    cluster: DelayCluster, ladder: Ladder
) -> None:
    dues: dict[bytes, float] = {}

    def schedule(name: str, seconds: float) -> None:
        with cluster.scheduler() as scheduler:
            for i in range(100):
                key = f"{name} {i}".encode()
                dues[key] = scheduler.send_later(key, b"v", cluster.target, seconds * i / 100).due

    schedule("old", 5)
    with cluster.relay() as first, cluster.relay() as second:
        wait_until(lambda: len(first.partitions) == len(second.partitions) == 1)
        cluster.wait_for(5)
        create_topics(cluster.config, cluster.name, ladder)
        schedule("new", 4)
        cluster.wait_for(200)
    found = cluster.read()
    assert sorted(message.key() for message in found) == sorted(dues)
    assert_not_early(found, dues)


@pytest.mark.slow
def test_a_relay_and_a_scheduler_go_on_when_all_topics_are_deleted_and_made_anew_with_other_lines(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.delay.delay_topic_choice.LAYOUT_LASTS", 0.1)

    def looks_for_delay_topics() -> bool:
        return any(thread.name == "headway-layout" for thread in threading.enumerate())

    with cluster.relay(), cluster.scheduler() as scheduler:

        def deliver(name: str, seconds: float) -> None:
            keys = [b"%s %d" % (name.encode(), number) for number in range(20)]
            for key in keys:
                scheduler.send_later(key, b"v", cluster.target, seconds)
            cluster.wait_for_keys(keys)

        deliver("before", 1.2)
        wait_until(lambda: not looks_for_delay_topics())
        topics = [topic for topic in cluster.admin.list_topics(timeout=10).topics if topic.startswith(cluster.name)]
        for deleted in cluster.admin.delete_topics(topics).values():
            deleted.result(30)
        create_topics(cluster.config, cluster.name, Ladder((1000, 3000)), partitions=2)
        time.sleep(0.1)  # as long as a scheduler knows what it knows
        deliver("after", 0.1)
        wait_until(lambda: not looks_for_delay_topics())
        deliver("in the new line", 3.1)
    # A relay that has not noticed the new topics delivers from them, too. Its successor begins at their first record.
    assert {message.key() for message in cluster.read()} == {
        b"%s %d" % (name, number) for name in (b"before", b"after", b"in the new line") for number in range(20)
    }


@pytest.mark.slow
def test_a_relay_reads_topics_that_were_created_again_with_a_lower_leader_epoch() -> None:
    with LocalBroker() as broker:
        cluster = DelayCluster(broker.bootstrap_servers)
        broker.nodes[0].stop()
        broker.nodes[0].start()

        def deliver(keys: list[bytes]) -> None:
            with cluster.scheduler() as scheduler:
                for key in keys:
                    scheduler.send_later(key, b"v", cluster.target, 1.2)
            cluster.wait_for_keys(keys, within=60)

        with cluster.relay():
            deliver([b"before %d" % number for number in range(10)])
            topics = [topic for topic in cluster.admin.list_topics(timeout=10).topics if topic.startswith(cluster.name)]
            for deleted in cluster.admin.delete_topics(topics).values():
                deleted.result(30)
            create_topics(cluster.config, cluster.name, LADDER, partitions=2)
            deliver([b"after %d" % number for number in range(10)])
        assert len(cluster.read()) == 20


def test_a_relay_says_that_its_stored_state_was_deleted(
    cluster: DelayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [b"%d" % number for number in range(20)]
    with cluster.scheduler() as scheduler, cluster.relay():
        for key in keys:
            scheduler.send_later(key, b"v", cluster.target, 1.2)
        cluster.wait_for_keys(keys)
    Admin(cluster.config).delete([cluster.names.state])  # it waits until brokers do not list the topic
    create_topics(cluster.config, cluster.name, LADDER, partitions=2)

    def errors() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]

    with cluster.relay() as relay:
        wait_until(lambda: relay.ready)
        assert [f"The topic {cluster.names.state} has no state for the partitions" in error for error in errors()] == [
            True
        ]


@pytest.mark.slow
def test_relays_go_on_when_the_topic_of_a_line_that_is_not_in_use_any_more_is_deleted_and_comes_back(
    cluster: DelayCluster,
) -> None:
    def deliver(key: bytes) -> None:
        with cluster.scheduler() as scheduler:
            for number in range(10):
                scheduler.send_later(key + b"%d" % number, b"v", cluster.target, 2.5)
        cluster.wait_for_keys({key + b"%d" % number for number in range(10)}, within=60)

    def stored() -> dict[int, dict[str, bytes]]:
        return read_compacted(cluster.config, cluster.names.state, [0, 1], 30)

    delay_topic, config = cluster.names.delay_topic(2000), {**cluster.config, "topic.metadata.refresh.interval.ms": 500}
    with Relay(config, name=cluster.name).running():
        deliver(b"through the line")
        assert any("line:2000" in each for each in stored().values())
        create_topics(cluster.config, cluster.name, Ladder((1000, 4000)))
        deliver(b"not in use")
        cluster.admin.delete_topics([delay_topic])[delay_topic].result(30)
        wait_until(lambda: not any("line:2000" in each for each in stored().values()), within=60)
        deliver(b"deleted")
        create_topics(cluster.config, cluster.name, LADDER)
        deliver(b"there again")
    assert len(cluster.read()) == 40


@pytest.mark.slow
@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_relays_clock_changes_nothing(
    cluster: DelayCluster, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        dues = {b"%d" % i: scheduler.send_later(b"%d" % i, b"v", cluster.target, 1 + 0.02 * i).due for i in range(100)}
        scheduler.flush()
        permission = time.time
        monkeypatch.setattr(time, "time", lambda: permission() + step)
        found = cluster.wait_for(100)
    assert_not_early(found, dues)


def test_a_key_that_is_no_bytes_is_a_sentence(cluster: DelayCluster) -> None:
    with (
        cluster.scheduler() as scheduler,
        pytest.raises(SerializationError, match="The key of a schedule is neither bytes nor a string"),
    ):
        scheduler.send_later(5, b"value", cluster.target, 60)


def test_who_cancels_what_is_not_stored_yet_waits_no_longer_than_asked_for(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        stored = scheduler.send_later(b"k", b"v", cluster.target, 60)
        stored.wait(30)
        parts = HandleParts.read(str(stored))
        schedule = Schedule(parts.id, parts.due, parts.at, 0, cluster.target)
        on_its_way = ScheduleHandle(parts.partition, schedule, DeliveryFuture.of(stored.future.destination, None))
        with pytest.raises(KafkaError, match=r"is not stored yet: Kafka has not answered within 0\.2 s"):
            scheduler.cancel(on_its_way, 0.2)
