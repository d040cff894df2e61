"""Records that are tried again much later: one identity, attempts that are counted on, and an end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from headway import ConsumerRecord, Context, Origin, ParallelConsumer, ProducerRecord, Retries, RetryLater
from headway.broker import LocalBroker
from headway.errors import EarlierAttemptError
from headway.records.history import HEADER, History, ToldError, history_of
from headway.records.record_types import Message
from tests.broker.delay_cluster import DelayCluster, wait_until

pytestmark = pytest.mark.kafka

DELAY = 0.2  # seconds


@pytest.fixture
def cluster(headway_broker: LocalBroker) -> DelayCluster:
    cluster = DelayCluster(headway_broker.bootstrap_servers)
    cluster.create_target(f"{cluster.target}-dead")
    return cluster


def consumer_of(cluster: DelayCluster, **options: Any) -> ParallelConsumer:
    config = {**cluster.config, "scheduler.name": cluster.name, "group.id": cluster.target}
    consumer = ParallelConsumer({**config, "auto.offset.reset": "earliest"}, **options)
    consumer.subscribe(cluster.target)
    return consumer


@contextmanager
def running(consumer: ParallelConsumer, handler: Callable[..., Any], *, produces: bool = False) -> Iterator[None]:
    """Run a consumer in a thread, and stop it at the end."""
    thread = threading.Thread(target=consumer.run_and_produce if produces else consumer.run, args=(handler,))
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join(60)
    assert consumer.failure is None


def send(cluster: DelayCluster, value: bytes, headers: list[Any], partition: int = 1) -> None:
    producer = KafkaProducer({"log_level": 0, **cluster.config})
    producer.produce(cluster.target, value, b"k", partition=partition, headers=headers)
    assert producer.flush(20) == 0


def story_of(letter: Message) -> dict[str, str]:
    return {
        name.removeprefix("headway.error."): value.decode()
        for name, value in letter.headers()
        if name.startswith("headway.error.")
    }


def fail_first_late_then_lost(record: ConsumerRecord, context: Context) -> None:
    """Fail as a handler that may run in another process: what it knows is in the context."""
    if context.attempt == 1:
        assert context.last_error is None
        try:
            raise TimeoutError("the bank is slow")
        except TimeoutError as error:
            raise RetryLater(DELAY) from error
    assert context.last_failed_at is not None
    assert isinstance(context.last_error, EarlierAttemptError)
    told = "TimeoutError", "the bank is slow"
    expected = told if context.attempt == 2 else ("ConnectionError", f"lost {context.attempt - 1}")
    assert (context.last_error.exception, context.last_error.message) == (f"builtins.{expected[0]}", expected[1])
    try:
        raise ConnectionError(f"lost {context.attempt}")
    except ConnectionError:
        raise RetryLater(DELAY)  # noqa: B904 - this, too, is said of the error that is handled


async def fail_async(record: ConsumerRecord, context: Context) -> None:
    fail_first_late_then_lost(record, context)


@pytest.mark.quick("transactional")
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (fail_first_late_then_lost, {}),
        (fail_async, {}),
        (fail_first_late_then_lost, {"executor": "process", "processes": 1}),
        (fail_first_late_then_lost, {"commit_mode": "transactional"}),
    ],
    ids=["threads", "async", "processes", "transactional"],
)
def test_a_record_that_asks_to_come_later_again_and_again_ends_as_a_dead_letter_that_tells_of_first_and_last(
    cluster: DelayCluster, handler: Callable[..., Any], options: dict[str, Any]
) -> None:
    dead = f"{cluster.target}-dead"
    consumer = consumer_of(cluster, retries=Retries(max_attempts=3), dead_letter_topic=dead, **options)
    send(cluster, b"pay", [("a", b"b")])
    with cluster.relay(), consumer, running(consumer, handler):
        [letter] = cluster.wait_for(1, dead)
    story = story_of(letter)
    assert (story["attempts"], story["reason"]) == ("3", "attempt 3 of 3 failed")
    assert (story["exception"], story["message"]) == ("builtins.ConnectionError", "lost 3")
    assert (story["first.exception"], story["first.message"]) == ("builtins.TimeoutError", "the bank is slow")
    assert int(story["last.time"]) - int(story["first.time"]) >= 2 * DELAY * 1000
    assert (letter.headers()[0], letter.value()) == (("a", b"b"), b"pay")
    assert history_of(letter.headers(), dead) == History(dead, Origin(cluster.target, 1, 0))


@pytest.mark.slow
def test_a_record_has_one_origin_wherever_it_is_handled(cluster: DelayCluster) -> None:
    dead, seen = f"{cluster.target}-dead", list[tuple[str, Origin, int]]()

    def handle(record: ConsumerRecord, context: Context) -> None:
        seen.append((record.topic, record.origin, context.attempt))
        if context.attempt < 3:
            raise RetryLater(DELAY)
        raise ValueError("no")

    consumer = consumer_of(cluster, retries=Retries(fatal=(ValueError,)), dead_letter_topic=dead)
    send(cluster, b"pay", [])
    with cluster.relay(), consumer, running(consumer, handle):
        cluster.wait_for(1, dead)
    of_the_dead = ParallelConsumer(
        {**cluster.config, "group.id": f"{cluster.target}-dead", "auto.offset.reset": "earliest"}
    )

    def look(record: ConsumerRecord, context: Context) -> None:
        seen.append((record.topic, record.origin, context.attempt))
        of_the_dead.stop()

    of_the_dead.subscribe(dead)
    of_the_dead.run(look)
    first = Origin(cluster.target, 1, 0)
    assert seen == [*((cluster.target, first, attempt) for attempt in (1, 2, 3)), (dead, first, 1)]


@pytest.mark.slow
def test_an_output_with_copied_headers_is_a_record_of_its_own(cluster: DelayCluster) -> None:
    out = f"{cluster.target}-out"
    cluster.create_target(out)

    def copy(record: ConsumerRecord, context: Context) -> ProducerRecord | None:
        if context.attempt == 1:
            raise RetryLater(DELAY)
        return ProducerRecord(out, record.value, record.raw_key, headers=record.headers, partition=0)

    consumer, seen = consumer_of(cluster), list[tuple[Origin, int]]()
    send(cluster, b"pay", [])
    with cluster.relay(), consumer, running(consumer, copy, produces=True):
        [copied] = cluster.wait_for(1, out)
    assert [name for name, _ in copied.headers()] == [HEADER]
    reader = ParallelConsumer({**cluster.config, "group.id": out, "auto.offset.reset": "earliest"})

    def look(record: ConsumerRecord, context: Context) -> None:
        seen.append((record.origin, context.attempt))
        reader.stop()

    reader.subscribe(out)
    reader.run(look)
    assert seen == [(Origin(out, 0, 0), 1)]


def test_a_forged_history_is_as_if_there_were_none_and_a_true_one_is_counted_on(cluster: DelayCluster) -> None:
    told, first = ToldError("builtins.OSError", "no", 1), Origin("elsewhere", 4, 2)
    forged = [
        (HEADER, None),
        (HEADER, b"\xff{"),
        (HEADER, b'{"topic":"%s","origin":["a b",0,0]}' % cluster.target.encode()),
        (HEADER, b'{"topic":"%s","origin":["a",-1,0]}' % cluster.target.encode()),
        (HEADER, b"[" * 9_000),
        History(cluster.target, first, attempts=3).header(),  # without errors
        History("another", first, attempts=3, first=told, last=told).header(),
    ]
    for header in forged:
        send(cluster, b"forged", [header])
    send(cluster, b"true", [History(cluster.target, first, 7, 2, told, told, 1).header()])
    consumer, seen = consumer_of(cluster), dict[int, tuple[Any, Origin, int]]()

    def look(record: ConsumerRecord, context: Context) -> None:
        seen[record.offset] = record.value, record.origin, context.attempt

    with consumer, running(consumer, look):
        wait_until(lambda: len(seen) == len(forged) + 1)
    assert seen.pop(len(forged)) == (b"true", first, 8)
    assert seen == {offset: (b"forged", Origin(cluster.target, 1, offset), 1) for offset in range(len(forged))}


@pytest.mark.slow
def test_another_group_gets_what_comes_again_with_attempts_of_its_own(cluster: DelayCluster) -> None:
    mine: list[int] = []
    theirs: list[tuple[int, Origin]] = []

    def fail_twice(record: ConsumerRecord, context: Context) -> None:
        mine.append(context.attempt)
        if context.attempt < 3:
            raise RetryLater(DELAY)

    def note(record: ConsumerRecord, context: Context) -> None:
        theirs.append((context.attempt, record.origin))

    send(cluster, b"pay", [])
    other = ParallelConsumer({**cluster.config, "group.id": f"{cluster.target}-other", "auto.offset.reset": "earliest"})
    other.subscribe(cluster.target)
    consumer = consumer_of(cluster)
    with cluster.relay(), consumer, other, running(consumer, fail_twice), running(other, note):
        wait_until(lambda: len(mine) == len(theirs) == 3)
    assert mine == [1, 2, 3]
    assert theirs == [(1, Origin(cluster.target, 1, 0))] * 3
