"""What an `Inspector` shows of queues in Apache Kafka, beside what Kafka's own client says."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, ParallelConsumer, Retries, Scheduler
from headway.core.levels.naming import level_group, level_topic
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.delay.topics import create_topics
from headway.errors import KafkaError
from headway.inspection.inspector import Inspector
from headway.inspection.snapshot import LevelStatus, Snapshot
from headway.kafka.admin import Admin
from headway.kafka.binding import capi
from tests.contract.conftest import PARTITIONS, Cluster

pytestmark = pytest.mark.kafka

T = TypeVar("T")
WITHIN = 60.0
FAST = 0.3
MAP = OffsetMap(2, (1, 3, 2, 2))  # 2, 6 and 7 are not done


def wait_for(inspector: Inspector, found: Callable[[Snapshot], T | None]) -> T:
    """Return what is found in the first snapshot that has it."""
    deadline = time.monotonic() + WITHIN
    snapshot = inspector.snapshot()
    while (answer := found(snapshot)) is None:
        assert time.monotonic() < deadline, snapshot
        snapshot = inspector.newer(snapshot)
    return answer


def commit(cluster: Cluster, group: str, topic: str, offset: int, metadata: bytes, partition: int = 0) -> None:
    consumer = ck.Consumer(cluster.config({"group.id": group, "log_level": 2}))
    refused = None
    while refused is None or any("oordinator" in str(error) for error in refused.values()):  # while Kafka makes one
        refused = capi.PendingCommit(consumer, {(topic, partition): (offset, metadata)}).refused(20)
    consumer.close()
    assert refused == {}


def send(cluster: Cluster, topic: str, count: int, partition: int = 0, key: bytes | None = None) -> None:
    producer = cluster.plain_producer()
    for number in range(count):
        producer.produce(topic, b"%d" % number, key=key, partition=partition)
    assert producer.flush(20) == 0


def level_of(snapshot: Snapshot, level: int) -> LevelStatus | None:
    return next((each for _, each in snapshot.levels if each.level == level), None)


@pytest.fixture
def topic(kafka_cluster: Cluster) -> str:
    """A topic of two levels, with ten records in the first partition of each."""
    name = kafka_cluster.topic(levels=2)
    for level in range(2):
        send(kafka_cluster, level_topic(name, level), 10)
    return name


def test_levels_that_a_group_reads_are_one_queue_with_the_figures_of_kafka(kafka_cluster: Cluster, topic: str) -> None:
    group = f"{topic}-billing"
    commit(kafka_cluster, level_group(group, 0), level_topic(topic, 0), 2, encode(MAP).encode())
    commit(kafka_cluster, level_group(group, 1), level_topic(topic, 1), 10, b"")
    with Inspector(kafka_cluster.config({}), groups=[group], every=FAST) as inspector:
        [queue] = inspector.snapshot().queues
    assert (queue.topic, queue.group) == (topic, group)
    high, low = queue.levels
    assert (high.level, high.kafka_topic, high.group) == (1, f"{topic}-1", f"{group}-1")
    assert [(each.partition, each.committed, each.log_end, each.not_done) for each in high.partitions] == [
        (0, 10, 10, 0),
        *((number, None, 0, 0) for number in range(1, PARTITIONS)),
    ]
    assert (low.partitions[0].offset_map, low.partitions[0].log_end) == (MAP, 10)
    assert queue.not_done == low.not_done == 3
    stuck = low.partitions[0].stuck
    assert stuck is not None
    assert (stuck.offset, stuck.behind, stuck.done_ahead, stuck.stands_still) == (2, 2, 5, False)


def test_a_group_with_a_map_is_found_by_itself_and_others_only_by_name(kafka_cluster: Cluster, topic: str) -> None:
    with_map, without = f"{topic}-mapped", f"{topic}-plain"
    commit(kafka_cluster, with_map, f"{topic}-0", 2, encode(MAP).encode())
    commit(kafka_cluster, without, f"{topic}-0", 2, b"")
    with Inspector(kafka_cluster.config({}), topics=[topic], every=FAST) as inspector:
        wait_for(inspector, lambda snapshot: with_map in {each.group for each in snapshot.queues} or None)
        assert without not in {each.group for each in inspector.snapshot().queues}
    with Inspector(kafka_cluster.config({}), groups=[without], every=FAST) as inspector:
        assert [each.group for each in inspector.snapshot().queues] == [without]


def test_one_stuck_record_of_many_is_shown_where_it_is(kafka_cluster: Cluster) -> None:
    """The others of its partition are done, those with its key wait, and the record itself is shown."""
    topic = kafka_cluster.topic(levels=1)
    name, group = level_topic(topic, 0), f"{topic}-billing"
    send(kafka_cluster, name, 30, partition=1, key=b"quick")
    send(kafka_cluster, name, 1, partition=1, key=b"ann")
    send(kafka_cluster, name, 300, partition=1, key=b"quick")
    send(kafka_cluster, name, 4, partition=1, key=b"ann")
    held, released = threading.Event(), threading.Event()

    def handle(record: ConsumerRecord) -> None:
        if record.raw_key == b"ann" and not held.is_set():
            held.set()
            released.wait()

    config = kafka_cluster.config({"group.id": group, "levels": 1, "auto.offset.reset": "earliest"})
    with ParallelConsumer(config, max_concurrency=4) as consumer:
        consumer.subscribe(topic)
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        try:
            with Inspector(kafka_cluster.config({}), groups=[group], every=FAST) as inspector:

                def found(snapshot: Snapshot) -> LevelStatus | None:
                    level = level_of(snapshot, 0)
                    counted = level and [each for _, each in level.stuck if each.behind_same_key is not None]
                    return level if counted else None

                level = wait_for(inspector, found)
                members = inspector.snapshot().members
                record = inspector.record(name, 1, 30)
        finally:
            released.set()
            consumer.stop()
            thread.join()
    [(partition, stuck)] = level.stuck
    assert (partition.partition, partition.committed, partition.log_end, level.not_done) == (1, 30, 335, 5)
    assert (stuck.offset, stuck.key, stuck.size, stuck.attempts) == (30, b"ann", 1, 0)
    assert (stuck.done_ahead, stuck.behind, stuck.behind_same_key, stuck.looked_at) == (300, 4, 4, 304)
    assert stuck.timestamp is not None
    assert abs(time.time() - stuck.timestamp) < 2 * WITHIN
    [member] = [each for each in members if each.group == f"{group}-0"]
    assert (partition.member, member.partitions) == (member.member_id, PARTITIONS)
    assert record is not None
    assert record.value() == b"0"


def test_arrivals_and_progress_are_rates_and_seconds_of_work(kafka_cluster: Cluster, topic: str) -> None:
    group = f"{topic}-plain"
    commit(kafka_cluster, group, f"{topic}-0", 0, b"")
    with Inspector(kafka_cluster.config({}), groups=[group], every=FAST) as inspector:
        assert inspector.snapshot().queues[0].not_done == 10
        send(kafka_cluster, f"{topic}-0", 20)
        commit(kafka_cluster, group, f"{topic}-0", 24, b"")

        def known(snapshot: Snapshot) -> LevelStatus | None:
            level = level_of(snapshot, 0)
            return level if level and level.not_done == 6 and level.seconds_of_work else None

        level = wait_for(inspector, known)
    assert level.arrived_per_second is not None
    assert level.done_per_second is not None
    assert level.done_per_second == pytest.approx(level.arrived_per_second * 24 / 20)
    assert level.seconds_of_work == pytest.approx(6 / level.done_per_second)


def test_a_topic_that_is_created_again_begins_anew(kafka_cluster: Cluster, topic: str) -> None:
    group, name = f"{topic}-plain", f"{topic}-0"
    commit(kafka_cluster, group, name, 2, encode(MAP).encode())
    admin = Admin(kafka_cluster.config({}))
    with Inspector(kafka_cluster.config({}), groups=[group], every=FAST) as inspector:
        assert inspector.snapshot().queues[0].not_done == 3
        admin.delete([name])
        kafka_cluster.create_topics([name])
        kafka_cluster.forget_topics()
        send(kafka_cluster, name, 2)
        commit(kafka_cluster, group, name, 0, b"")
        level = wait_for(inspector, lambda snapshot: next((e for _, e in snapshot.levels if e.not_done == 2), None))
    assert level.partitions[0].log_end == 2


@pytest.fixture
def dead_topic(kafka_cluster: Cluster) -> str:
    """A dead-letter topic, and a consumer that has filled it with three letters of two causes."""
    topic = kafka_cluster.topic(levels=1)
    dead = f"{topic}-0-dead"
    kafka_cluster.create_topics([dead])
    for number in range(3):
        send(kafka_cluster, f"{topic}-0", 1, partition=number)
    done = threading.Semaphore(0)

    def handle(record: ConsumerRecord) -> None:
        done.release()
        raise KeyError("no such customer") if record.partition else ValueError("<b>[bold]no")

    config = kafka_cluster.config({"group.id": f"{topic}-billing", "auto.offset.reset": "earliest"})
    with ParallelConsumer(config, retries=Retries(max_attempts=1), dead_letter_topic=dead) as consumer:
        consumer.subscribe(f"{topic}-0")
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        for _ in range(3):
            assert done.acquire(timeout=WITHIN)
        consumer.stop()
        thread.join()
    return dead


def test_dead_letters_are_counted_by_cause_and_one_can_be_opened(kafka_cluster: Cluster, dead_topic: str) -> None:
    with Inspector(kafka_cluster.config({}), groups=["none"], dead_letters=[dead_topic], every=FAST) as inspector:
        [status] = inspector.snapshot().dead_letters
        first = status.causes[0]
        letter = inspector.letter(dead_topic, *first.newest)
        none = inspector.letter(dead_topic, 0, 1_000_000)
    assert (status.total, status.open, status.read) == (3, 3, 3)
    assert [(each.exception, each.count) for each in status.causes] == [
        ("builtins.KeyError", 2),
        ("builtins.ValueError", 1),
    ]
    assert status.causes[1].message == "<b>[bold]no"
    assert none is None
    assert letter is not None
    assert letter.failure is not None
    assert (letter.value, letter.failure.message) == (b"0", "'no such customer'")


def test_schedules_are_counted_by_hour_and_overdue_without_a_relay(kafka_cluster: Cluster) -> None:
    name = f"{kafka_cluster.topic(levels=1)}-delay"
    config = kafka_cluster.config({})
    create_topics(config, name, partitions=2)
    with Scheduler(config, name=name) as scheduler:
        due_now = [scheduler.send_later(None, b"x", "orders", 0.1) for _ in range(3)]
        later = [scheduler.send_later(None, b"x", "orders", 7_200) for _ in range(2)]
        for handle in due_now + later:
            handle.wait(WITHIN)
    with Inspector(config, groups=["none"], schedulers=[name], every=FAST) as inspector:
        status = wait_for(inspector, lambda snapshot: next((s for s in snapshot.schedulers if s.overdue), None))
    assert (status.name, status.pending, status.counted, status.relays) == (name, 5, 5, 0)
    assert status.overdue == 3
    assert 0 < status.late_seconds < WITHIN
    assert sum(count for _, count in status.hours) == 5
    assert status.hours[-1][1] == 2
    assert sum(each.pending for each in status.delay_topics) == 5


def test_a_kafka_that_cannot_be_reached_is_an_error_at_once() -> None:
    with pytest.raises(KafkaError, match="cannot be reached"):
        Inspector({"bootstrap.servers": "127.0.0.1:1"})
