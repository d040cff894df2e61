"""A scheduler begins with few topics, and adds those of longer delays while schedulers and relays of others run."""

import logging
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from headway import AsyncScheduler, Relay, Scheduler, Settled
from headway.broker import LocalBroker
from headway.core.delay.ladder import Ladder
from headway.delay.pending import read_pending
from headway.delay.topic_names import TopicNames
from headway.delay.topics import create_topics, read_layout
from headway.kafka.reading.group_inspector import GroupInspector
from tests.broker.delay_cluster import DelayCluster, wait_until
from tests.kafka_proxy import KafkaProxy

LIST_OFFSETS = 2


class FreshCluster(DelayCluster):
    """A scheduler's name without any topic."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self.name = f"fresh-{uuid.uuid4().hex[:8]}"
        self.names = TopicNames(self.name)

    @property
    def own_topics(self) -> list[str]:
        """The scheduler's topics, without the beginning of their names."""
        topics = self.admin.list_topics(timeout=10).topics
        return sorted(topic.removeprefix(f"{self.name}.") for topic in topics if topic.startswith(f"{self.name}."))

    @property
    def delay_topics(self) -> list[int]:
        """The delay topics that exist."""
        return sorted(int(topic.removeprefix("line-")) for topic in self.own_topics if topic.startswith("line-"))


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> FreshCluster:
    return FreshCluster(headway_broker.bootstrap_servers)


def test_a_scheduler_of_short_delays_makes_ten_topics_and_each_longer_delay_the_lines_that_it_needs(
    cluster: FreshCluster,
) -> None:
    with cluster.scheduler() as scheduler:
        for _ in range(20):
            scheduler.send_later("k", b"v", cluster.target, 5)
        assert len(cluster.own_topics) == 10
        assert cluster.delay_topics == [0, 1000, 2000, 4000, 8000]
        scheduler.send_later("k", b"v", cluster.target, 60)
        assert cluster.delay_topics == [0, 1000, 2000, 4000, 8000, 16_000, 32_000]
        daily = scheduler.every("0 9 * * *", "k", b"v", cluster.target)
        assert cluster.delay_topics[-1] == 65_536_000
        scheduler.reschedule(daily, 86_400 * 365 * 50)
        assert tuple(cluster.delay_topics) == (0, *Ladder.exponential().delays)
    assert len(cluster.own_topics) == 33


@pytest.mark.slow
def test_records_are_delivered_once_and_on_time_while_schedulers_add_lines_under_running_relays(
    cluster: FreshCluster,
) -> None:
    with ExitStack() as stack:
        schedulers = [stack.enter_context(cluster.scheduler()) for _ in range(3)]
        relays = [stack.enter_context(cluster.relay()) for _ in range(2)]
        wait_until(lambda: all(len(relay.partitions) == 2 for relay in relays))
        dues: dict[bytes, float] = {}

        def schedule(number: int, delay: float) -> None:
            handles = {f"{number} {i} {delay}": delay + i / 10 for i in range(20)}
            for key, seconds in handles.items():
                dues[key.encode()] = schedulers[number].send_later(key, b"v", cluster.target, seconds).due

        with ThreadPoolExecutor(3) as threads:
            for delay in (0.5, 17, 34):  # all at once need delay topics that nobody has made
                for made in [threads.submit(schedule, number, delay) for number in range(3)]:
                    made.result()
        assert cluster.delay_topics == [0, 1000, 2000, 4000, 8000, 16_000, 32_000]
        found = cluster.wait_for(len(dues), within=90)
        wait_until(lambda: not cluster.pending())
    assert Counter(message.key() for message in found) == dict.fromkeys(dues, 1)
    late = [message.timestamp()[1] / 1000 - dues[message.key()] for message in found]
    assert min(late) + 1e-9 >= 0
    assert max(late) < 25


@pytest.mark.slow
def test_a_relay_of_another_process_reads_a_new_line_before_its_first_record_has_to_leave(
    cluster: FreshCluster,
) -> None:
    with cluster.scheduler() as scheduler:
        relay = cluster.relay_process()
        try:
            scheduler.send_later("first", b"v", cluster.target, 0)
            cluster.wait_for_keys([b"first"])
            due = scheduler.send_later("through the new line", b"v", cluster.target, 17).due
            assert cluster.delay_topics[-1] == 16_000
            cluster.wait_for_keys([b"through the new line"])
        finally:
            relay.kill()
            relay.wait()
    [late] = [m.timestamp()[1] / 1000 - due for m in cluster.read() if m.key() == b"through the new line"]
    assert 0 <= late < 10


@pytest.mark.slow
def test_a_schedule_in_a_line_that_no_relay_knows_yet_is_found_and_moved_earlier_or_cancelled(
    cluster: FreshCluster,
) -> None:
    with cluster.scheduler() as scheduler, cluster.relay():
        scheduler.send_later("warm", b"", cluster.target, 0.1)
        cluster.wait_for_keys([b"warm"])  # so a relay is at work, with the delay topics up to 8 s
        moved = scheduler.send_later("moved", b"", cluster.target, 40)
        assert scheduler.reschedule(moved, 1).settled() is Settled.RESCHEDULED
        text = str(scheduler.send_later("by text", b"", cluster.target, 100))
        scheduler.flush()
        with cluster.scheduler() as other:
            assert other.reschedule(text, 1).settled() is Settled.RESCHEDULED
        scheduler.send_later("own", b"", cluster.target, 200, id="own")
        assert scheduler.reschedule("id:own", 1).settled() is Settled.RESCHEDULED
        cancelled = scheduler.send_later("cancelled", b"", cluster.target, 400)
        assert scheduler.cancel(cancelled).settled() is Settled.CANCELLED
        cluster.wait_for_keys([b"moved", b"by text", b"own"], within=30)
        assert cluster.pending() == []
    assert sorted(message.key() for message in cluster.read()) == [b"by text", b"moved", b"own", b"warm"]


@pytest.mark.slow
def test_what_was_scheduled_before_a_relay_ran_is_in_lines_that_it_reads_from_its_start(cluster: FreshCluster) -> None:
    with cluster.scheduler() as scheduler:
        for seconds in (0, 20, 3600):
            scheduler.send_later(f"{seconds}", b"v", cluster.target, seconds)
        scheduler.flush()
        with cluster.relay():
            cluster.wait_for_keys([b"0", b"20"])
        assert [each.schedule.topic for each in cluster.pending()] == [cluster.target]


async def test_an_async_scheduler_adds_lines_too(cluster: FreshCluster) -> None:
    async with AsyncScheduler(cluster.config, name=cluster.name) as scheduler:
        assert len(cluster.delay_topics) == 5
        await scheduler.send_later("k", b"v", cluster.target, 3600)
        assert cluster.delay_topics[-1] == 2_048_000


@pytest.mark.slow
def test_two_schedulers_that_begin_at_once_agree_on_the_lines(cluster: FreshCluster) -> None:
    with ThreadPoolExecutor(6) as threads:
        made = [threads.submit(Scheduler, cluster.config, name=cluster.name) for _ in range(6)]
        for each in made:
            each.result().close()
    assert cluster.delay_topics == [0, 1000, 2000, 4000, 8000]
    layout = read_layout(cluster.config, cluster.name)
    assert layout is not None
    assert layout.ladder == Ladder.exponential()


@pytest.mark.slow
def test_a_line_whose_topic_is_not_needed_yet_is_no_cause_for_a_warning(
    cluster: FreshCluster, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = caplog.at_level(logging.WARNING)
    with cluster.scheduler() as scheduler, warnings, Relay(cluster.config, name=cluster.name).running():
        scheduler.send_later("k", b"v", cluster.target, 0.1)
        cluster.wait_for_keys([b"k"])
    assert [record for record in caplog.records if record.name.startswith("headway.delay")] == []


@pytest.mark.slow
def test_a_relay_that_starts_before_its_scheduler_has_topics_waits_for_them_and_says_so_once(
    cluster: FreshCluster,
) -> None:
    relay = cluster.relay_process(stderr=subprocess.PIPE)
    try:
        assert relay.stderr is not None
        said = [relay.stderr.readline() for _ in range(2)]
        assert b"is running. Stop it with Ctrl-C" in said[0]
        assert b"has no topics yet, so the relay waits for them" in said[1]
        time.sleep(1.5)  # three looks
        with cluster.scheduler() as scheduler:
            scheduler.send_later("k", b"v", cluster.target, 0.1)
            scheduler.flush()
            cluster.wait_for_keys([b"k"])
        relay.terminate()
        rest = relay.stderr.read()
        assert relay.wait(30) == 0
        assert b"no topics" not in rest
    finally:
        relay.kill()
        relay.communicate()


def test_a_relay_that_waits_for_topics_can_be_stopped_and_closed(cluster: FreshCluster) -> None:
    with Relay(cluster.config, name=cluster.name).running() as relay:
        assert not relay.ready
        assert relay.partitions == []
    asked = iter([False, False, True])
    with Relay(cluster.config, name=cluster.name) as another:
        another.run(lambda: next(asked))
    assert cluster.own_topics == []


@pytest.mark.slow
def test_to_list_what_is_pending_takes_as_few_requests_with_many_lines_as_with_few(cluster: FreshCluster) -> None:
    create_topics(cluster.config, cluster.name, partitions=2)
    with cluster.scheduler() as scheduler, cluster.relay():
        for seconds in (1, 2, 4, 5):  # the markers of these transactions stay in the delay topics
            scheduler.send_later("k", b"v", cluster.target, seconds)
        cluster.wait_for(4)
        wait_until(lambda: not cluster.pending())
    with KafkaProxy(cluster.config["bootstrap.servers"]) as proxy:
        config = {"bootstrap.servers": proxy.bootstrap_servers}
        assert list(read_pending(config, cluster.name)) == []
        assert len(proxy.of(LIST_OFFSETS)) < 15  # and not two for each partition of a delay topic
        assert len(proxy.requests) < 200
    with cluster.scheduler() as scheduler:
        days = [scheduler.send_later("k", b"v", cluster.target, 86_400 * 2**day) for day in range(5)]
        scheduler.flush()
    assert sorted(each.handle for each in cluster.pending()) == sorted(map(str, days))


@pytest.mark.slow
def test_what_moves_while_lines_are_read_is_listed_at_least_once(
    cluster: FreshCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(cluster.config, cluster.name, partitions=2)
    read_together = GroupInspector.read_together
    moved: list[str] = []

    def move(inspector: GroupInspector, ranges: Any) -> Iterator[Any]:
        """Let a record appear in a delay topic that was looked at before; its delay topic before is read without it."""
        if not moved:
            with cluster.scheduler() as scheduler:
                moved.append(str(scheduler.send_later("k", b"v", cluster.target, 9000)))
        yield from read_together(inspector, ranges)

    with cluster.scheduler() as scheduler:
        first = str(scheduler.send_later("k", b"v", cluster.target, 900))
        scheduler.flush()
        monkeypatch.setattr(GroupInspector, "read_together", move)
        assert [each.handle for each in cluster.pending()] == [first, *moved]
