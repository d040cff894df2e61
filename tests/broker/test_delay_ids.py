"""Ids of users' own on a real Apache Kafka: one schedule of an id is pending, across processes, relays and restarts."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from headway import AsyncScheduler, Settled
from headway.broker import LocalBroker
from headway.core.delay.changes import Put
from headway.core.delay.schedule import Schedule
from headway.delay.relay.output import Mode
from headway.errors import ConfigError, IdPendingError, NoRelayError
from tests.broker.delay_cluster import DelayCluster, wait_until
from tests.compacted import read_compacted

BOTH = pytest.mark.parametrize("mode", ["exactly-once", "low-latency"])


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    return DelayCluster(headway_broker.bootstrap_servers)


@pytest.mark.quick("exactly-once")
@BOTH
def test_the_same_id_again_replaces_what_is_pending_in_a_line_in_memory_and_before_a_relay_runs(
    cluster: DelayCluster, mode: Mode
) -> None:
    with cluster.scheduler() as first, cluster.scheduler() as second:
        for scheduler, value in ((first, b"1"), (second, b"2")):
            scheduler.send_later("k", value, cluster.target, 600, id="no relay").wait(30)
            scheduler.send_later("k", value, cluster.target, 0.5, id="due", headers=[("own", b"x")]).wait(30)
        with cluster.relay(mode=mode):
            cluster.wait_for(1)
            for delay in (600, 0.8, 3):  # far away, in memory, and in a delay topic again
                second.send_later("other key", b"3 %f" % delay, cluster.target, delay, id="no relay").wait(30)
            found = cluster.wait_for(2)
            wait_until(lambda: not cluster.pending())
            time.sleep(0.5)  # in which nothing more may come
    assert [(m.key(), m.value(), m.headers()) for m in found] == [
        (b"k", b"2", [("own", b"x")]),
        (b"other key", b"3 3.000000", None),
    ]
    assert len(cluster.read()) == 2


@pytest.mark.slow
def test_the_same_id_again_is_refused_or_dropped_where_that_is_asked_for(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        first = scheduler.send_later("k", b"first", cluster.target, 600, id="reminder-42", if_pending="refuse")
        first.wait(30)
        assert (str(first), first.id) == ("id:reminder-42", "reminder-42")
        with cluster.scheduler() as other:
            again = other.send_later("k", b"again", cluster.target, 1.5, id="reminder-42", if_pending="refuse")
            with pytest.raises(IdPendingError, match="with the id 'reminder-42' is pending, so this one"):
                again.wait(30)
            other.send_later("k", b"kept away", cluster.target, 0.1, id="reminder-42", if_pending="keep").wait(30)
        assert scheduler.reschedule(first, 0.1).settled() is Settled.RESCHEDULED
        cluster.wait_for(1)
        scheduler.send_later("k", b"free again", cluster.target, 0.1, id="reminder-42", if_pending="refuse").wait(30)
        found = cluster.wait_for(2)
    assert [message.value() for message in found] == [b"first", b"free again"]


def test_what_recurs_is_one_schedule_however_often_its_service_starts(cluster: DelayCluster) -> None:
    with cluster.relay():
        first: list[float] = []
        for _ in range(3):
            with cluster.scheduler() as service:
                hourly = service.every(3600, "hour", b"", cluster.target)
                daily = service.every("0 5 1 1 *", "day", b"report", cluster.target, headers=[("a", b"1")])
                other = service.every("0 5 1 1 *", "day", b"another", cluster.target, headers=[("a", b"1")])
                first.append(hourly.due)
        assert len({str(each) for each in (hourly, daily, other)}) == 3
        with cluster.scheduler() as scheduler:
            with pytest.raises(IdPendingError):  # which is answered behind all that was asked of the id before
                scheduler.send_later("hour", b"", cluster.target, 1, id=hourly.id, if_pending="refuse").wait()
            assert scheduler.cancel(daily).settled() is Settled.CANCELLED
            assert scheduler.cancel(other).settled() is Settled.CANCELLED
            assert [each.due / 1000 for each in cluster.pending()] == first[:1]
            assert scheduler.cancel(hourly).settled() is Settled.CANCELLED
            assert cluster.pending() == []


def test_by_ones_own_id_a_schedule_is_cancelled_and_rescheduled_from_anywhere(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        assert scheduler.cancel("id:cancelled").settled() is Settled.UNKNOWN
        for id_ in ("cancelled", "sooner", "later"):
            scheduler.send_later("k", id_.encode(), cluster.target, 2 if id_ == "later" else 600, id=id_)
        scheduler.flush()
        with cluster.scheduler() as other:
            assert other.cancel("id:cancelled").settled() is Settled.CANCELLED
            assert other.reschedule("id:later", 600).settled() is Settled.RESCHEDULED
            # Its record may still be on its way.
            assert other.reschedule("id:sooner", 0.2).settled() is Settled.RESCHEDULED
        cluster.wait_for(1)
        assert scheduler.cancel("id:sooner").settled() is Settled.DELIVERED
        assert scheduler.reschedule("id:later", 0.1).settled() is Settled.RESCHEDULED
        found = cluster.wait_for(2)
        every = scheduler.every(0.2, "k", b"every", cluster.target, id="every")
        cluster.wait_for(4)
        assert scheduler.cancel(str(every)).settled() is Settled.CANCELLED
        count = len(cluster.read())
        time.sleep(0.6)  # three of its times, in which nothing more may come
        assert len(cluster.read()) == count
    assert [message.value() for message in found] == [b"sooner", b"later"]


async def test_an_async_scheduler_has_ids_too(cluster: DelayCluster) -> None:
    with cluster.relay():
        async with AsyncScheduler(cluster.config, name=cluster.name) as scheduler:
            handle = await scheduler.send_later("k", b"v", cluster.target, 600, id="async", if_pending="refuse")
            with pytest.raises(IdPendingError):
                await scheduler.send_later("k", b"v", cluster.target, 600, id="async", if_pending="refuse")
            assert await (await scheduler.cancel(str(handle))).settled() is Settled.CANCELLED


def test_whether_an_id_is_refused_is_not_known_without_a_relay(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        handle = scheduler.send_later("k", b"v", cluster.target, 0.1, id="1", if_pending="refuse")
        with pytest.raises(NoRelayError):
            handle.wait(2)
        with cluster.relay():
            cluster.wait_for(1)


@pytest.mark.slow
def test_many_processes_and_relays_that_are_killed_leave_one_delivery_of_each_id_and_the_last(
    cluster: DelayCluster,
) -> None:
    relays = [cluster.relay_process() for _ in range(2)]
    due = time.time() + 12

    def schedule(number: int) -> None:
        with cluster.scheduler() as scheduler:
            for turn in range(15):
                for id_ in range(20):
                    value = b"%d %d" % (number, turn)
                    scheduler.send_later(f"{id_}", value, cluster.target, due - time.time() + number, id=f"{id_}")
                scheduler.flush()

    try:
        with ThreadPoolExecutor(3) as threads:
            running = [threads.submit(schedule, number) for number in range(3)]
            time.sleep(1.5)  # at any moment while they schedule
            relays[0].kill()
            relays.append(cluster.relay_process())
            for each in running:
                each.result()
        found = cluster.wait_for(20, within=90)
        wait_until(lambda: not cluster.pending(), within=90)
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()
    assert len(cluster.read()) == len(found) == 20
    assert Counter(message.key() for message in found) == {b"%d" % id_: 1 for id_ in range(20)}
    assert {message.value().split()[1] for message in found} == {b"14"}


def test_a_damaged_command_with_an_id_stops_nobody(cluster: DelayCluster, caplog: pytest.LogCaptureFixture) -> None:
    now = round(time.time() * 1000)
    schedule, put = Schedule("id:1", now, now, 0, cluster.target).header(), Put("replace").header()
    stranger = Schedule("not a user's own", now, now, 0, cluster.target).header()
    for headers in ([put], [("headway.put", b"{}"), schedule], [stranger, put], [schedule, ("headway.put", None)]):
        cluster.put(cluster.names.commands, b"k", b"v", headers)
    cluster.put(cluster.names.commands, b"k", b"good", [schedule, put])
    with cluster.relay():
        [found] = cluster.wait_for(1)
    assert found.value() == b"good"
    assert caplog.text.count("is skipped") == 4


@pytest.mark.slow
def test_of_ids_that_were_delivered_nothing_stays_stored(cluster: DelayCluster) -> None:
    def stored() -> list[str]:
        state = read_compacted(cluster.config, cluster.names.state, [0, 1], 30)
        return [key for values in state.values() for key in values if key.startswith("change:")]

    with cluster.scheduler() as scheduler, cluster.relay():
        for number in range(50):
            scheduler.send_later("k", b"v", cluster.target, 0.5, id=f"{number}")
        cluster.wait_for(50)
        assert len(stored()) == 50  # for a minute, so that a late cancellation is told
        wait_until(lambda: not stored(), within=90)


def test_a_request_is_stored_without_a_relay_and_the_next_one_carries_it_out(cluster: DelayCluster) -> None:
    with cluster.scheduler() as scheduler:
        handle = scheduler.send_later("k", b"cancelled", cluster.target, 4)
        for id_ in ("own", "own too", "moved"):
            scheduler.send_later("k", id_.encode(), cluster.target, 600 if id_ == "moved" else 4, id=id_)
        began = time.monotonic()
        for each in (handle, "id:own", "id:own too", "id:unknown"):
            scheduler.cancel(each, answered=False).stored()
        scheduler.reschedule("id:moved", 0.1, answered=False).stored()
        assert time.monotonic() - began < 10  # it waits for no answer
        with pytest.raises(ConfigError, match="is not a handle of a schedule"):
            scheduler.cancel("own")
    with cluster.relay(), cluster.scheduler() as other:
        due = other.send_later("k", b"after", cluster.target, 4.5).due
        cluster.wait_for(2)
        assert time.time() >= due
        assert [message.value() for message in cluster.read()] == [b"moved", b"after"]
        assert other.cancel("id:own").settled() is Settled.CANCELLED
    assert cluster.read(cluster.names.answers)[:-1] == []


async def test_an_async_scheduler_stores_a_request_without_a_relay_too(cluster: DelayCluster) -> None:
    async with AsyncScheduler(cluster.config, name=cluster.name) as scheduler:
        await scheduler.send_later("k", b"cancelled", cluster.target, 600, id="own")
        await scheduler.send_later("k", b"moved", cluster.target, 600, id="moved")
        unanswered = await scheduler.cancel("id:own", answered=False)
        with pytest.raises(ConfigError, match="was sent with answered=False"):
            await unanswered.settled()
        await scheduler.reschedule("id:moved", 0.1, answered=False)
        with cluster.relay():
            assert await (await scheduler.cancel("id:own")).settled() is Settled.CANCELLED
            cluster.wait_for(1)
