"""Records handled in parallel, on a real Apache Kafka."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import pytest

from headway import (
    Batches,
    ConsumerRecord,
    Context,
    FatalError,
    Ordering,
    ParallelConsumer,
    RetriableError,
    Retries,
)
from headway.core.offsets.offset_map import decode_map
from headway.core.retry import fixed_backoff
from headway.errors import HandlerError
from headway.kafka.binding import capi
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    CONSUMER_PROTOCOL,
    ORDERINGS,
    Member,
    committed,
    consumer,
    plain_topic,
    read,
    send,
    wait_for,
)

pytestmark = pytest.mark.kafka

Place = tuple[int, int]


def place(record: ConsumerRecord) -> Place:
    return record.partition, record.offset


def as_coroutine(handler: Callable[[ConsumerRecord, Context], None]) -> Callable[..., Any]:
    async def handle(record: ConsumerRecord, context: Context) -> None:
        await asyncio.sleep(0)
        handler(record, context)

    return handle


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("executor", ["threads", "async"])
def test_every_record_is_handled_once_and_in_the_order_asked_for(
    kafka_cluster: Cluster, ordering: Ordering, executor: str
) -> None:
    topic, count = plain_topic(kafka_cluster), 2000
    send(kafka_cluster, topic, [(f"key-{i % 37}", str(i)) for i in range(count)])
    handled: list[tuple[Place, bytes | None]] = []
    parallel = consumer(kafka_cluster, topic, {"ordering": ordering, "max_concurrency": 50})

    def note(record: ConsumerRecord, context: Context) -> None:
        handled.append((place(record), record.key))
        if len(handled) == count:
            parallel.stop()

    parallel.run(note if executor == "threads" else as_coroutine(note))
    assert len({where for where, _ in handled}) == len(handled) == count
    lanes: dict[Any, list[int]] = defaultdict(list)
    for (partition, offset), key in handled:
        lanes[{"key": key, "partition": partition}.get(ordering.value, offset)].append(offset)
    assert all(offsets == sorted(offsets) for offsets in lanes.values())
    assert all(not metadata for _, metadata in committed(kafka_cluster, topic).values())
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


def test_levels_are_the_topics_and_groups_of_the_priority_consumer(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    with kafka_cluster.producer() as producer:
        for i in range(60):
            producer.send(topic, str(i), level=i % 3)
    levels: Counter[int] = Counter()
    parallel = consumer(kafka_cluster, topic, {}, levels=3)

    def note(record: ConsumerRecord, context: Context) -> None:
        assert record.topic == topic
        assert record.level == context.level
        levels[context.level] += 1
        if levels.total() == 60:
            parallel.stop()

    parallel.run(note)
    assert levels == {0: 20, 1: 20, 2: 20}
    with kafka_cluster.producer() as producer, kafka_cluster.consumer(topic) as after:
        producer.send(topic, "later", level=1)
        producer.flush(30)
        after.subscribe(topic)
        assert [record.value for record in after.poll(30)] == [b"later"]


def test_a_restart_repeats_only_what_was_not_done(kafka_cluster: Cluster) -> None:
    topic, count = plain_topic(kafka_cluster), 400
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    first: list[bytes] = []
    again: list[bytes] = []

    def fail_some(record: ConsumerRecord, context: Context) -> None:
        if int(record.value) % 10 == 0:
            raise OSError("not now")
        first.append(record.value)

    member = Member(consumer(kafka_cluster, topic), fail_some)
    wait_for(lambda: len(first) == count * 9 // 10)
    member.stop()
    commits = committed(kafka_cluster, topic)
    maps = [decode_map(metadata, offset) for offset, metadata in commits.values()]
    assert sum(len(done) for each in maps for done in each.complete) > count // 2

    second = consumer(kafka_cluster, topic)

    def note(record: ConsumerRecord, context: Context) -> None:
        again.append(record.value)
        if len(again) == count // 10:
            second.stop()

    second.run(note)
    assert sorted(map(int, again)) == list(range(0, count, 10))
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


@pytest.mark.parametrize("settings", [{}, CONSUMER_PROTOCOL], ids=["classic", "consumer"])
def test_a_topic_that_is_missing_is_told_by_its_name_and_read_once_it_is_there(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    topic = f"jobs-{uuid.uuid4().hex[:8]}"
    parallel = consumer(kafka_cluster, topic, **{"topic.metadata.refresh.interval.ms": 200, **settings})
    handled: list[bytes | None] = []
    member = Member(parallel, lambda record, context: handled.append(record.value))
    wait_for(lambda: f"Kafka has no topic {topic}. It will be read as soon as it is created." in caplog.text)
    kafka_cluster.create_topics([topic])
    send(kafka_cluster, topic, [(None, "first")])
    wait_for(lambda: handled == [b"first"])
    member.stop()


def test_foreign_commit_metadata_is_dropped_and_the_offset_stands(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("k", str(i)) for i in range(10)], partition=0)
    client = ck.Consumer(kafka_cluster.config({"log_level": 0, "group.id": topic}))
    assert capi.PendingCommit(client, {(topic, 0): (4, b"not ours!")}).refused(30) == {}
    client.close()
    handled: list[int] = []
    parallel = consumer(kafka_cluster, topic)

    def note(record: ConsumerRecord, context: Context) -> None:
        handled.append(record.offset)
        if record.offset == 9:
            parallel.stop()

    parallel.run(note)
    assert handled == [4, 5, 6, 7, 8, 9]
    assert "without an offset map" in caplog.text


# Failures


def test_a_handler_that_fails_twice_and_then_succeeds_keeps_the_order_of_its_key(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "first"), ("a", "second"), ("b", "other")])
    seen: list[tuple[bytes, int, str, bool]] = []
    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fixed_backoff(0.05))})

    def handle(record: ConsumerRecord, context: Context) -> None:
        failed_before = context.last_failed_at is not None and 0 <= time.time() - context.last_failed_at < 30
        seen.append((record.value, context.attempt, repr(context.last_error), failed_before))
        if record.value == b"first" and context.attempt < 3:
            raise ValueError(f"attempt {context.attempt}")
        if len(seen) == 5:
            parallel.stop()

    parallel.run(handle)
    assert [each for each in seen if each[0] != b"other"] == [
        (b"first", 1, "None", False),
        (b"first", 2, "ValueError('attempt 1')", True),
        (b"first", 3, "ValueError('attempt 2')", True),
        (b"second", 1, "None", False),
    ]


@pytest.mark.parametrize("executor", ["threads", "async"])
def test_a_poison_record_ends_in_the_dead_letter_topic_and_its_key_goes_on(
    kafka_cluster: Cluster, executor: str
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    producer = kafka_cluster.plain_producer()
    producer.produce(topic, b"poison", b"a", 1, headers=[("trace", b"7")])
    producer.produce(topic, b"hopeless", b"a", 1)
    producer.produce(topic, b"good", b"a", 1)
    assert producer.flush(30) == 0
    attempts: Counter[bytes] = Counter()
    parallel = consumer(
        kafka_cluster, topic, {"retries": Retries(fixed_backoff(0.01), max_attempts=3), "dead_letter_topic": dead}
    )

    def handle(record: ConsumerRecord, context: Context) -> None:
        attempts[record.value] += 1
        if record.value == b"poison":
            raise ValueError("it is poison")
        if record.value == b"hopeless":
            raise FatalError("no use")
        parallel.stop()

    parallel.run(handle if executor == "threads" else as_coroutine(handle))
    assert attempts == {b"poison": 3, b"hopeless": 1, b"good": 1}
    assert committed(kafka_cluster, topic) == {1: (3, b"")}
    poison, hopeless = read(kafka_cluster, dead, 2)
    assert (poison.key(), poison.value()) == (b"a", b"poison")
    headers: dict[str, Any] = dict(poison.headers() or [])
    first, last = int(headers.pop("headway.error.first.time")), int(headers.pop("headway.error.last.time"))
    assert 0 <= last - first < 30_000
    assert abs(time.time() * 1000 - last) < 60_000
    assert int(headers.pop("headway.error.timestamp")) <= first
    assert abs(poison.timestamp()[1] - last) < 60_000
    assert json.loads(headers.pop("headway.history")) == {"topic": dead, "origin": [topic, 1, 0]}
    assert headers == {
        "trace": b"7",
        "headway.error.exception": b"builtins.ValueError",
        "headway.error.message": b"it is poison",
        "headway.error.reason": b"attempt 3 of 3 failed",
        "headway.error.attempts": b"3",
        "headway.error.topic": topic.encode(),
        "headway.error.partition": b"1",
        "headway.error.offset": b"0",
        "headway.error.group": topic.encode(),
        "headway.error.first.exception": b"builtins.ValueError",
        "headway.error.first.message": b"it is poison",
    }
    assert dict(hopeless.headers() or [])["headway.error.attempts"] == b"1"


def test_a_record_that_cannot_be_read_goes_to_the_dead_letter_topic_as_it_came(kafka_cluster: Cluster) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1"), ("a", "one"), ("a", "2")])
    numbers: list[int] = []
    parallel = consumer(kafka_cluster, topic, {"dead_letter_topic": dead}, **{"value.deserializer": int})

    def handle(record: ConsumerRecord, context: Context) -> None:
        numbers.append(record.value)
        if len(numbers) == 2:
            parallel.stop()

    parallel.run(handle)
    assert numbers == [1, 2]
    [letter] = read(kafka_cluster, dead, 1)
    assert letter.value() == b"one"


@pytest.mark.parametrize("commit_mode", ["async", "transactional"])
def test_a_record_as_large_as_a_producer_sends_becomes_a_dead_letter_whatever_its_error_says(
    kafka_cluster: Cluster, commit_mode: str
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "x" * 999_000), ("a", "last")], partition=0)
    parallel = consumer(kafka_cluster, topic, {"dead_letter_topic": dead, "commit_mode": commit_mode})

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"last":
            parallel.stop()
        else:
            raise FatalError("y" * 1_100_000)

    parallel.run(handle)
    [letter] = read(kafka_cluster, dead, 1)
    assert letter.value() == b"x" * 999_000
    assert dict(letter.headers() or [])["headway.error.message"] == f"{'y' * 10_000} …".encode()
    assert parallel.metrics().failed == 1


def test_without_a_dead_letter_topic_a_record_that_failed_for_good_ends_the_run(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "bad")], partition=0)

    def refuse(record: ConsumerRecord, context: Context) -> None:
        raise FatalError("no use")

    with consumer(kafka_cluster, topic) as parallel:
        with pytest.raises(HandlerError, match="Name a dead_letter_topic") as raised:
            parallel.run(refuse)
        assert isinstance(raised.value.__cause__, FatalError)
    assert committed(kafka_cluster, topic) == {}


# Life


def test_attempts_that_tried_nothing_leave_all_others_to_the_record(kafka_cluster: Cluster) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "bad"), ("a", "last")], partition=0)
    attempts: list[int] = []
    retries = Retries(fixed_backoff(0), max_attempts=2)
    parallel = consumer(kafka_cluster, topic, {"retries": retries, "dead_letter_topic": dead})

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"last":
            parallel.stop()
            return
        attempts.append(context.attempt)
        raise RetriableError("held back", untried=True) if context.attempt <= 3 else ValueError("bad")

    parallel.run(handle)
    assert attempts == [1, 2, 3, 4, 5]
    [letter] = read(kafka_cluster, dead, 1)
    assert dict(letter.headers() or [])["headway.error.reason"] == b"attempt 2 of 2 failed"


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("of_context", [False, True])
def test_a_second_parameter_with_a_default_keeps_it_unless_it_is_the_context(
    kafka_cluster: Cluster, in_batches: bool, of_context: bool
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    came: list[Any] = []
    parallel = consumer(kafka_cluster, topic)

    def with_factor(record: Any, factor: int = 2) -> None:
        came.append(factor)
        parallel.stop()

    def with_context(record: Any, told: "list[Context] | Context | None" = None) -> None:
        came.append(told)
        parallel.stop()

    handle: Callable[..., None] = with_context if of_context else with_factor
    if in_batches:
        parallel.run(handle, batches=Batches(1))
    else:
        parallel.run(handle)
    parallel.close()
    assert came != [None] if of_context else came == [2]


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async_generator"])
@pytest.mark.parametrize("batches", [False, True])
def test_a_call_that_returns_what_it_should_have_run_has_failed(
    kafka_cluster: Cluster, kind: str, batches: bool
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    errors: list[BaseException | None] = []
    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fixed_backoff(0))})

    async def coroutine() -> None: ...

    def generator() -> Iterator[None]:
        yield

    async def async_generator() -> Any:
        yield

    def handle(record: Any, context: Any) -> Any:
        [context] = context if batches else [context]
        if context.attempt == 1:
            return {"coroutine": coroutine, "generator": generator, "async_generator": async_generator}[kind]()
        errors.append(context.last_error)
        parallel.stop()
        return None

    if batches:
        parallel.run(handle, batches=Batches(1))
    else:
        parallel.run(handle)
    assert f"The handler returned a {kind}, so its code has not run" in str(errors)


def test_pause_starts_nothing_until_resume(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    handled: list[bytes] = []
    parallel = consumer(kafka_cluster, topic)
    parallel.pause()
    send(kafka_cluster, topic, [("a", "1"), ("b", "2")])
    member = Member(parallel, lambda record, context: handled.append(record.value))
    wait_for(parallel.assignment)
    assert not handled
    parallel.resume()
    wait_for(lambda: len(handled) == 2)
    wait_for(lambda: parallel.work_remaining == 0)
    member.stop()


def test_what_is_in_flight_when_it_drains_is_done_and_what_did_not_start_is_left(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)], partition=0)
    started, go_on = threading.Event(), threading.Event()

    def handle(record: ConsumerRecord, context: Context) -> None:
        started.set()
        go_on.wait(30)

    member = Member(consumer(kafka_cluster, topic), handle)
    assert started.wait(30)
    assert member.consumer.work_remaining == 5
    member.consumer.stop()
    go_on.set()
    member.stop()
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


def test_closing_at_once_does_not_wait_for_what_runs(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "stuck"), ("b", "quick")], partition=0)
    go_on, quick = threading.Event(), threading.Event()

    def handle(record: ConsumerRecord, context: Context) -> None:
        (go_on.wait if record.key == b"a" else quick.set)()

    member = Member(consumer(kafka_cluster, topic), handle)
    assert quick.wait(30)
    wait_for(lambda: member.consumer.work_remaining == 1)
    member.stop(drain=False)
    go_on.set()
    [(offset, metadata)] = committed(kafka_cluster, topic).values()
    assert decode_map(metadata, offset).complete == [range(1, 2)]


def test_a_consumer_that_never_ran_can_be_closed(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    with consumer(kafka_cluster, topic):
        pass


PROGRAM = """
import sys, threading
from headway import ParallelConsumer

servers, topic, interval = sys.argv[1:]
never = threading.Event()

def handle(record, context):
    if int(record.value) % 10 == 0:
        never.wait()

def tell():  # what counts as done: a handler cannot know
    told = 0
    while not never.wait(0.01):
        for told in range(told + 1, consumer.metrics().done + 1):
            sys.stdout.write(f"{told}\\n")
        sys.stdout.flush()

config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest",
          "session.timeout.ms": 6000, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": interval}
with ParallelConsumer(config, max_concurrency=50) as consumer:
    consumer.subscribe(topic)
    threading.Thread(target=tell, daemon=True).start()
    consumer.run(handle)
"""


@contextmanager
def started(cluster: Cluster, topic: str, interval: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, topic, str(interval)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout
    return [int(process.stdout.readline()) for _ in range(count)]


def test_a_killed_process_repeats_only_what_was_not_in_its_last_commit(kafka_cluster: Cluster) -> None:
    topic, count = plain_topic(kafka_cluster), 200
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    with started(kafka_cluster, topic, interval=100) as process:
        done = lines(process, count * 9 // 10)
        wait_for(lambda: complete_in(committed(kafka_cluster, topic)) == len(done))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    again: list[int] = []
    parallel = consumer(kafka_cluster, topic)

    def note(record: ConsumerRecord, context: Context) -> None:
        again.append(int(record.value))
        if len(again) == count // 10:
            parallel.stop()

    parallel.run(note)
    assert sorted(again) == list(range(0, count, 10))


def complete_in(commits: dict[int, tuple[int, bytes]]) -> int:
    maps = [decode_map(metadata, offset) for offset, metadata in commits.values()]
    return sum(each.offset + sum(map(len, each.complete)) for each in maps)


def test_ctrl_c_ends_a_run_whose_handlers_never_end(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(20)])
    with started(kafka_cluster, topic, interval=600_000) as process:
        done = lines(process, 18)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in error
    assert complete_in(committed(kafka_cluster, topic)) == len(done)


def test_settings_that_have_no_place_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"max.poll.records cannot be used here. .*max_concurrency"):
        ParallelConsumer({"group.id": "g", "max.poll.records": 5})
    with pytest.raises(ValueError, match="max_concurrency is 0; it must be at least 1"):
        ParallelConsumer({"group.id": "g"}, max_concurrency=0)
    with pytest.raises(ValueError, match="there is no dead_letter_topic for records"):
        ParallelConsumer({"group.id": "g"}, retries=Retries(max_attempts=3))
