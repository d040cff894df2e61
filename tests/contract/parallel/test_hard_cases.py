"""What was lost, stuck or repeated in other products, on a real Apache Kafka."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headway import ConsumerRecord, Context, FatalError, Ordering, Retries
from headway.core.offsets.offset_map import decode_map
from headway.core.retry import fixed_backoff
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    COOPERATIVE,
    OFTEN,
    Gate,
    Member,
    Notes,
    Process,
    committed,
    consumer,
    handled_until_all_is_committed,
    log_ends,
    maps_of,
    plain_topic,
    processes,
    send,
    topic_of,
    wait_for,
)

pytestmark = pytest.mark.kafka


# The size of a map

# With every other offset done by chance, a map is a bitset that nothing makes smaller: a byte that says so, two for
# its width, a bit for each offset, and a trailer of eight bytes: which log it is of, and the committed offset 0. Base64
# makes 4,096 characters of 3,072 bytes.
WIDEST = 8 * (3072 - 3 - 8)


class HalfDone:
    """A partition 0 with `width` records, of which about every other is done and the others are stuck."""

    def __init__(self, width: int) -> None:
        chance = random.Random(width)
        self.stuck = {0} | {offset for offset in range(width - 1) if chance.random() < 0.5}
        self.last_stuck = {offset for offset in self.stuck if chance.random() < 0.05}
        self.done = set(range(width)) - self.stuck
        self.here, self.most, self.rest = Gate(), Gate(), Gate()  # all are here; most, or the rest, may end
        self.handled: Counter[tuple[int, int]] = Counter()
        self.later: Counter[int] = Counter()  # how many of each partition's other records were handled
        self._width = width

    async def handle(self, record: ConsumerRecord, context: Context) -> None:
        if record.partition == 0 and record.offset < self._width:
            await self.here.wait()
            if record.offset in self.stuck:
                await (self.rest if record.offset in self.last_stuck else self.most).wait()
        else:
            self.later[record.partition] += 1
        self.handled[record.partition, record.offset] += 1

    def fill(self, cluster: Cluster, topic: str) -> Member:
        """A member that has handled the half of them, and has committed that."""
        send(cluster, topic, ((None, "") for _ in range(self._width)), 0)
        options = {"ordering": Ordering.UNORDERED, "max_concurrency": 30_000}
        member = Member(consumer(cluster, topic, options, **OFTEN), self.handle)
        wait_for(lambda: self.here.waiting == self._width)
        self.here.open()
        wait_for(lambda: len(self.handled) == len(self.done))
        wait_for(lambda: member.consumer.work_remaining == len(self.stuck))  # what has ended is settled too
        return member


@pytest.mark.slow
@pytest.mark.parametrize("width", [WIDEST, WIDEST + 1], ids=["full", "overfull"])
def test_a_partition_whose_map_is_full_takes_nothing_new_until_it_eases_and_others_go_on(
    kafka_cluster: Cluster, width: int
) -> None:
    topic, records = plain_topic(kafka_cluster), HalfDone(width)
    member = records.fill(kafka_cluster, topic)
    try:

        def remembered() -> set[int]:
            offset, metadata = committed(kafka_cluster, topic).get(0, (0, b""))
            assert offset == 0
            assert len(metadata) <= 4096
            return {each for run in decode_map(metadata, offset).complete for each in run}

        wait_for(lambda: len(remembered()) > len(records.done) * 0.9)
        if width == WIDEST:
            wait_for(lambda: remembered() == records.done)
        assert remembered() <= records.done
        assert (remembered() == records.done) == (width == WIDEST)
        send(kafka_cluster, topic, [(None, "")] * 500, 0)
        send(kafka_cluster, topic, [(None, "")] * 500, 1)
        wait_for(lambda: records.later[1] == 500)
        assert records.later[0] == 0
        records.most.open()
        wait_for(lambda: records.later[0] == 500)
        records.rest.open()
        ends = {partition: (end, b"") for partition, end in log_ends(kafka_cluster, topic).items()}
        wait_for(lambda: committed(kafka_cluster, topic) == ends)
    finally:
        member.stop(drain=False)
    assert set(records.handled.values()) == {1}
    assert len(records.handled) == width + 1000


@pytest.mark.slow
def test_a_restart_from_a_full_map_repeats_exactly_what_was_not_done(kafka_cluster: Cluster) -> None:
    topic, records = plain_topic(kafka_cluster), HalfDone(WIDEST)
    records.fill(kafka_cluster, topic).stop(drain=False)
    assert len(committed(kafka_cluster, topic)[0][1]) == 4096
    again = handled_until_all_is_committed(kafka_cluster, topic)
    assert sorted(again) == [(0, offset) for offset in sorted(records.stuck)]


# Stuck keys


def test_stuck_keys_hold_back_only_their_own_records(kafka_cluster: Cluster) -> None:
    topic, keys, rounds, stuck_keys = plain_topic(kafka_cluster), 4000, 10, 40
    stuck = {f"key-{i}".encode() for i in range(0, keys, keys // stuck_keys)}
    send(kafka_cluster, topic, ((f"key-{i}", f"{r}") for r in range(rounds) for i in range(keys)))
    handled: dict[bytes, list[int]] = defaultdict(list)
    gate = Gate()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        if record.key in stuck:
            await gate.wait()
        handled[record.key].append(int(record.value))

    member = Member(consumer(kafka_cluster, topic, {"max_concurrency": 100}), handle)
    try:
        wait_for(lambda: sum(map(len, list(handled.values()))) == rounds * (keys - stuck_keys))
        wait_for(lambda: member.consumer.work_remaining == rounds * stuck_keys)
        assert gate.waiting == stuck_keys
        assert not stuck & handled.keys()
        gate.open()
        wait_for(lambda: member.consumer.work_remaining == 0)
    finally:
        member.stop(drain=False)
    assert len(handled) == keys
    assert all(each == list(range(rounds)) for each in handled.values())
    assert {p: (end, b"") for p, end in log_ends(kafka_cluster, topic).items()} == committed(kafka_cluster, topic)


def test_equal_keys_of_two_topics_or_partitions_do_not_wait_for_each_other(kafka_cluster: Cluster) -> None:
    topics = [plain_topic(kafka_cluster), plain_topic(kafka_cluster)]
    places = {(topic, partition) for topic in topics for partition in range(2)}
    for topic, partition in places:
        send(kafka_cluster, topic, [("the key", "first"), ("the key", "second")], partition)
    all_here = threading.Barrier(len(places))
    handled: list[tuple[str, int, bytes]] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"first":
            all_here.wait(30)  # breaks if one of them waits for another
        handled.append((record.topic, record.partition, record.value))

    parallel = consumer(kafka_cluster, topics[0])
    parallel.subscribe(topics)
    member = Member(parallel, handle)
    wait_for(lambda: len(handled) == 2 * len(places))
    member.stop()
    for topic, partition in places:
        assert [value for *place, value in handled if place == [topic, partition]] == [b"first", b"second"]


def test_keys_are_told_apart_by_their_bytes_whatever_the_deserialiser_makes_of_them(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("K", "stuck"), ("K", "behind"), ("k", "other")], 0)
    go_on = threading.Event()
    handled: list[tuple[str, bytes]] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"stuck":
            go_on.wait(30)
        handled.append((record.key, record.value))

    settings: dict[str, Any] = {"key.deserializer": lambda key: key.decode().lower()}
    member = Member(consumer(kafka_cluster, topic, **settings), handle)
    wait_for(lambda: handled)
    assert handled == [("k", b"other")]
    go_on.set()
    wait_for(lambda: len(handled) == 3)
    member.stop()
    assert handled[1:] == [("k", b"stuck"), ("k", b"behind")]


# Members


@pytest.mark.slow
@pytest.mark.parametrize("handlers", ["threads", "async"])
@pytest.mark.parametrize("settings", [COOPERATIVE, CONSUMER_PROTOCOL], ids=["cooperative", "kip848"])
def test_partitions_leave_a_member_whose_handlers_never_end_when_the_hand_over_is_over(
    kafka_cluster: Cluster, settings: dict[str, Any], handlers: str
) -> None:
    topic = plain_topic(kafka_cluster)
    for partition in range(4):
        send(kafka_cluster, topic, [(f"{i}", "") for i in range(10)], partition)
    busy, go_on, gate = threading.Semaphore(0), threading.Event(), Gate()
    elsewhere: dict[int, float] = {}

    def block(record: ConsumerRecord, context: Context) -> None:
        busy.release()
        go_on.wait(60)

    async def block_async(record: ConsumerRecord, context: Context) -> None:
        busy.release()
        await gate.wait()

    options = {"max_concurrency": 40, "hand_over_timeout": 2.0}
    first = Member(consumer(kafka_cluster, topic, options, **settings), block if handlers == "threads" else block_async)
    try:
        assert all(busy.acquire(timeout=30) for _ in range(40))
        asked_at = time.monotonic()
        second = Member(
            consumer(kafka_cluster, topic, options, **settings),
            lambda record, context: elsewhere.setdefault(record.partition, time.monotonic()),
        )
        try:
            wait_for(lambda: len(elsewhere) == 2)
            assert max(elsewhere.values()) - asked_at >= 1.5  # a quarter of the hand-over is for its commit
        finally:
            second.stop()
    finally:
        go_on.set()
        gate.open()
        first.stop()


@pytest.mark.slow
def test_a_kill_repeats_exactly_what_the_last_commit_does_not_have_behind_a_stuck_record(
    kafka_cluster: Cluster, tmp_path: Path
) -> None:
    topic, count = topic_of(kafka_cluster, 1), 100_000
    send(kafka_cluster, topic, (("stuck", "stuck") if i == 0 else (f"key-{i % 1000}", "") for i in range(count)))
    with processes() as started, closing(Notes(tmp_path / "notes")) as notes:
        settings = {"auto.commit.interval.ms": 300}
        started.append(Process(kafka_cluster, topic, notes.path, settings))
        wait_for(lambda: undone(kafka_cluster, topic) == [0], 180)
        send(kafka_cluster, topic, ((f"key-{i}", "") for i in range(300)))
        wait_for(lambda: any(note.offset > count for note in notes.read() if note.what == "ended"))
        started[0].kill()
    left = undone(kafka_cluster, topic)
    assert left[0] == 0
    assert left[1:] == sorted(set(left) - set(range(count)))
    assert sorted(handled_until_all_is_committed(kafka_cluster, topic)) == [(0, offset) for offset in left]


def undone(cluster: Cluster, topic: str) -> list[int]:
    """The offsets of partition 0 that are not done, as the group's commit says."""
    commit = maps_of(committed(cluster, topic)).get(0)
    if commit is None:
        return list(range(log_ends(cluster, topic)[0]))
    complete = {offset for run in commit.complete for offset in run}
    return [offset for offset in range(commit.offset, log_ends(cluster, topic)[0]) if offset not in complete]


# Failures of others


def fail() -> float:
    raise KeyError("a delay function that fails")


DELAYS: dict[bytes, Callable[[], Any]] = {
    b"raises": fail,
    b"nan": lambda: float("nan"),
    b"inf": lambda: float("inf"),
    b"None": lambda: None,
    b"below zero": lambda: -1e308,
}


def test_whatever_a_delay_function_does_the_record_is_tried_again(kafka_cluster: Cluster) -> None:
    topic = topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [(key.decode(), value) for key in DELAYS for value in ("fails", "behind")])
    seen: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)

    def handle(record: ConsumerRecord, context: Context) -> None:
        seen[record.key].append((record.value, context.attempt))
        if record.value == b"fails" and context.attempt < 3:
            raise OSError("not now")

    retries = Retries(fixed_backoff(0.01), delay=lambda record, attempt, error: DELAYS[record.key]())
    member = Member(consumer(kafka_cluster, topic, {"retries": retries}, **OFTEN), handle)
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (2 * len(DELAYS), b"")})
    member.stop()
    assert all(seen[key] == [(b"fails", 1), (b"fails", 2), (b"fails", 3), (b"behind", 1)] for key in DELAYS)


def test_a_key_that_cannot_be_read_becomes_a_dead_letter_and_others_go_on(kafka_cluster: Cluster) -> None:
    topic, dead = topic_of(kafka_cluster, 1), topic_of(kafka_cluster, 1)
    send(kafka_cluster, topic, [("1", ""), ("one", ""), ("2", ""), ("one", ""), ("3", "")])
    keys: list[int] = []
    settings: dict[str, Any] = {"key.deserializer": int, "auto.commit.interval.ms": 100}
    member = Member(
        consumer(kafka_cluster, topic, {"dead_letter_topic": dead}, **settings),
        lambda record, context: keys.append(record.key),
    )
    wait_for(lambda: committed(kafka_cluster, topic) == {0: (5, b"")})
    member.stop()
    assert sorted(keys) == [1, 2, 3]
    assert log_ends(kafka_cluster, dead) == {0: 2}


def take_only_small_records(cluster: Cluster, topic: str) -> None:
    """Alter a topic so that it takes no record over 500 bytes."""
    small = ConfigEntry("max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[small])
    admin = AdminClient(cluster.config({"log_level": 0}))
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(30)


def test_a_dead_letter_that_kafka_refuses_keeps_its_record_and_others_go_on(kafka_cluster: Cluster) -> None:
    topic, dead = topic_of(kafka_cluster, 1), topic_of(kafka_cluster, 1)
    hopeless = 0
    good: list[bytes] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        nonlocal hopeless
        if record.offset == 0:
            hopeless += 1
            raise FatalError("no use")
        good.append(record.value)

    member = Member(consumer(kafka_cluster, topic, {"dead_letter_topic": dead}, **OFTEN), handle)
    wait_for(member.consumer.assignment)
    take_only_small_records(kafka_cluster, dead)  # before the run it would be refused
    send(kafka_cluster, topic, [("a", "x" * 1000), ("a", "behind"), *((f"{i}", "good") for i in range(100))])
    wait_for(lambda: hopeless == 1 and len(undone(kafka_cluster, topic)) == 2)
    member.stop()
    assert hopeless == 1  # it is the letter that is tried again
    assert good == [b"good"] * 100
    assert undone(kafka_cluster, topic) == [0, 1]
    assert committed(kafka_cluster, topic)[0][0] == 0
    assert log_ends(kafka_cluster, dead) == {}
