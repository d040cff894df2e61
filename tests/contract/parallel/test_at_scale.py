"""Many records: members that come, go and die under load, memory that stays bounded, dead letters that wait."""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context, FatalError
from headway.broker import LocalBroker
from headway.kafka.admin import Admin
from tests.contract.conftest import Cluster, cluster_of
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    COOPERATIVE,
    OFTEN,
    Gate,
    Member,
    Note,
    Notes,
    Process,
    committed,
    consumer,
    log_ends,
    maps_of,
    plain_topic,
    processes,
    send,
    topic_of,
    wait_for,
)

pytestmark = pytest.mark.kafka


# Members under load


@pytest.fixture(scope="module")
def impatient_cluster() -> Iterator[Cluster]:
    """An Apache Kafka that gives a silent member up after 6 seconds with either protocol."""
    with LocalBroker(properties={"group.consumer.session.timeout.ms": "6000"}) as broker:
        yield cluster_of(broker)


class Feeder:
    """Writes records of 500 keys until it may end, at least `least`, and always a bit more than was handled."""

    def __init__(self, cluster: Cluster, topic: str, least: int, handled: Callable[[], int]) -> None:
        self.sent = 0
        self._cluster = cluster
        self._topic = topic
        self._least = least
        self._handled = handled
        self._may_end = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self) -> None:
        with closing(
            ck.Producer(self._cluster.config({"log_level": 0, "linger.ms": 5, "enable.idempotence": True}))
        ) as producer:
            while self.sent < self._least or not self._may_end.is_set():
                for i in range(1000):
                    producer.produce(self._topic, b"", f"key-{i % 500}")
                assert producer.flush(30) == 0
                self.sent += 1000
                while self.sent - self._handled() > 10_000 and not self._may_end.is_set():
                    threading.Event().wait(0.02)

    def end(self) -> None:
        """Write what is lacking of the least, and end."""
        self._may_end.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [COOPERATIVE, CONSUMER_PROTOCOL], ids=["cooperative", "kip848"])
@pytest.mark.parametrize("least", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_processes_that_join_leave_and_are_killed_under_load_lose_nothing_and_keep_the_order_of_each_key(
    impatient_cluster: Cluster, tmp_path: Path, settings: dict[str, Any], least: int
) -> None:
    topic = plain_topic(impatient_cluster)

    def join() -> Process:
        own = settings | {"auto.commit.interval.ms": 500}
        started.append(Process(impatient_cluster, topic, notes.path, own, max_concurrency=64, pause=0.005))
        wait_for(lambda: notes.of(started[-1].id))
        return started[-1]

    def places() -> set[tuple[int, int]]:
        return {note.place for note in notes.read() if note.what == "ended"}

    with closing(Notes(tmp_path / "notes")) as notes, processes() as started:
        feeder = Feeder(impatient_cluster, topic, least, lambda: len(notes.read()) // 2)
        try:
            first, second, third = join(), join(), join()
            first.stop()
            wait_for(lambda: len(notes.of(second.id)) and len(notes.of(third.id)))
            third.kill()
            fourth = join()
            seen = len(notes.of(second.id)) + len(notes.of(fourth.id))
            wait_for(lambda: len(notes.of(second.id)) + len(notes.of(fourth.id)) > seen + 1000)
        finally:
            feeder.end()
        wait_for(lambda: len(places()) == feeder.sent, 180)
        second.stop()
        fourth.stop()
        ends = log_ends(impatient_cluster, topic)
        assert sum(ends.values()) == len(places()) == feeder.sent
        assert committed(impatient_cluster, topic) == {partition: (end, b"") for partition, end in ends.items()}
        assert_in_order(notes.read(), killed=third.id)


def assert_in_order(notes: list[Note], killed: int) -> None:
    """Each key one record at a time and in its order; repeated is only what a killed process had."""
    of_keys: dict[tuple[int, str], list[Note]] = defaultdict(list)
    times: dict[tuple[int, int], list[int]] = defaultdict(list)
    for note in notes:
        of_keys[note.partition, note.key].append(note)
        if note.what == "started":
            times[note.place].append(note.process)
    repeated = {place: by for place, by in times.items() if len(by) > 1}
    assert all(len(by) == 2 and by[0] == killed for by in repeated.values())
    for of_key in of_keys.values():
        firsts = list(dict.fromkeys(note.offset for note in of_key))
        assert firsts == sorted(firsts)
        alive = [note for note in of_key if note.process != killed]
        for start, end in zip(alive[::2], alive[1::2], strict=True):
            assert (start.what, end.what, start.place) == ("started", "ended", end.place)
    print(f"{len(times)} records, {len(repeated)} of them twice")


# Memory

MEGABYTE = 10**6


@pytest.mark.slow
def test_a_million_records_take_no_more_memory_than_a_hundred_thousand(kafka_cluster: Cluster, tmp_path: Path) -> None:
    topic, count = plain_topic(kafka_cluster), 1_000_000
    send(kafka_cluster, topic, ((f"key-{i % 10_000}", "x" * 100) for i in range(count)))
    with processes() as started:
        settings = {"auto.commit.interval.ms": 1000}
        started.append(Process(kafka_cluster, topic, tmp_path / "notes", settings, print_every=10_000))
        peaks = dict(started[0].measured() for _ in range(count // 10_000))
        started[0].stop()
    print({handled: f"{peaks[handled] / MEGABYTE:.0f} MB" for handled in (10_000, 100_000, 500_000, count)})
    assert peaks[count] - peaks[100_000] < 64 * MEGABYTE
    ends = log_ends(kafka_cluster, topic)
    assert committed(kafka_cluster, topic) == {partition: (end, b"") for partition, end in ends.items()}
    assert sum(ends.values()) == count


# Stuck keys


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 1500])
def test_forty_stuck_keys_of_four_thousand_let_a_hundred_thousand_others_through(
    kafka_cluster: Cluster, size: int
) -> None:
    topic, keys, count, chance = topic_of(kafka_cluster, 1), 4000, 300_000, random.Random(1)
    stuck = {b"%d" % i for i in chance.sample(range(keys), 40)}
    send(kafka_cluster, topic, ((f"{chance.randrange(keys)}", f"{i:{size}}") for i in range(count)))
    handled: dict[bytes, list[int]] = defaultdict(list)
    total, gate = 0, Gate()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        nonlocal total
        if record.key in stuck:
            await gate.wait()
        handled[record.key].append(int(record.value))
        total += 1

    settings: dict[str, Any] = {"auto.commit.interval.ms": 1000}
    member = Member(consumer(kafka_cluster, topic, {"max_concurrency": 100}, **settings), handle)
    try:
        wait_for(lambda: total and rests(lambda: total), 120)
        waiting, [(_, metadata)] = member.consumer.work_remaining, committed(kafka_cluster, topic).values()
        print(f"{total} others were handled, {waiting} wait, and the map has {len(metadata)} characters")
        assert total >= 100_000
        assert gate.waiting == len(stuck)
        assert not stuck & handled.keys()
        assert metadata  # so a restart now would repeat none of them
        gate.open()
        wait_for(lambda: total == count, 120)
    finally:
        member.stop(drain=False)
    assert sum(map(len, handled.values())) == count
    assert all(each == sorted(each) for each in handled.values())


def rests(number: Callable[[], int]) -> bool:
    """Whether a number has not changed for three seconds."""
    before = number()
    threading.Event().wait(3)
    return number() == before


# Dead letters


@pytest.mark.slow
def test_without_its_dead_letter_topic_a_poison_record_is_kept_and_others_go_on(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = topic_of(kafka_cluster, 1), topic_of(kafka_cluster, 1)
    attempts: Counter[bytes] = Counter()

    def handle(record: ConsumerRecord, context: Context) -> None:
        attempts[record.value] += 1
        if record.value == b"poison":
            raise FatalError("no use")

    member = Member(consumer(kafka_cluster, topic, {"dead_letter_topic": dead}, **OFTEN), handle)
    send(kafka_cluster, topic, [("first", "good")])
    wait_for(lambda: attempts[b"good"] == 1)
    Admin(kafka_cluster.config({})).delete([dead])
    send(kafka_cluster, topic, [("a", "poison"), ("a", "behind"), *((f"{i}", "good") for i in range(100))])
    wait_for(lambda: "Dead letters cannot be stored" in caplog.text, 60)
    wait_for(lambda: attempts[b"good"] == 101)
    member.stop(drain=False)
    assert attempts == {b"poison": 1, b"good": 101}
    offset_map = maps_of(committed(kafka_cluster, topic))[0]
    assert (offset_map.offset, offset_map.complete) == (1, [range(3, 103)])
