"""Failed attempts are counted on through restarts, hand-overs and seeks, in every mode. On a real Apache Kafka."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from headway import ConsumerRecord, Context, ParallelConsumer, Retries, TopicPartition
from headway.core.retry import fixed_backoff
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    COOPERATIVE,
    OFTEN,
    Member,
    committed,
    consumer,
    plain_topic,
    read,
    send,
    topic_of,
    wait_for,
)
from tests.contract.parallel.process_handlers import fail

pytestmark = pytest.mark.kafka

MOST = 5
A_LIFE = 2  # attempts
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "synchronous": {"commit_mode": "sync"},
    "transactional": {"commit_mode": "transactional"},
    "processes": {"executor": "process", "processes": 1},
}


def failing(cluster: Cluster, topic: str, dead: str, options: dict[str, Any], **settings: Any) -> ParallelConsumer:
    retries = Retries(fixed_backoff(0.2), max_attempts=MOST)
    return consumer(cluster, topic, {"retries": retries, "dead_letter_topic": dead} | options, **OFTEN | settings)


def attempts_in_lives(live: Callable[[], tuple[int, int]]) -> int:
    """How many attempts fail until there is a dead letter, which lives of two attempts or so make in turn."""
    attempts = 0
    for _ in range(MOST):
        failed, letters = live()
        attempts += failed
        if letters:
            return attempts
    pytest.fail(f"No dead letter after {attempts} attempts.")


def attempts_of_letters(cluster: Cluster, dead: str, count: int) -> list[bytes]:
    """The attempts that dead letters tell of."""
    headers: list[dict[str, Any]] = [dict(letter.headers() or []) for letter in read(cluster, dead, count)]
    return [each["headway.error.attempts"] for each in headers]


@pytest.mark.quick("plain")
@pytest.mark.parametrize("mode", MODES)
def test_a_service_that_is_restarted_gives_a_record_up_after_its_last_attempt(
    kafka_cluster: Cluster, mode: str
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "fails")], partition=0)  # nothing is ever done above it

    def live() -> tuple[int, int]:
        parallel = failing(kafka_cluster, topic, dead, MODES[mode])
        member = Member(parallel, fail)
        wait_for(lambda: parallel.metrics().failed >= A_LIFE or parallel.metrics().dead_letters)
        member.stop(drain=False)
        return parallel.metrics().failed, parallel.metrics().dead_letters

    assert attempts_in_lives(live) == MOST
    assert attempts_of_letters(kafka_cluster, dead, 1) == [b"%d" % MOST]
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


def test_each_level_counts_on(kafka_cluster: Cluster) -> None:
    topic, dead = kafka_cluster.topic(), plain_topic(kafka_cluster)
    with kafka_cluster.producer() as producer:
        for level in range(3):
            producer.send(topic, b"fails", level=level)
    attempts: list[tuple[int, int]] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        attempts.append((record.level, context.attempt))
        raise ValueError("It fails.")

    first = Member(failing(kafka_cluster, topic, dead, {}, levels=3), handle)
    wait_for(lambda: {level for level, _ in attempts} == {0, 1, 2})
    first.stop(drain=False)
    second = Member(failing(kafka_cluster, topic, dead, {}, levels=3), handle)
    assert attempts_of_letters(kafka_cluster, dead, 3) == [b"%d" % MOST] * 3
    second.stop(drain=False)
    assert sorted(attempts) == [(level, attempt) for level in range(3) for attempt in range(1, MOST + 1)]


@pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_the_member_that_takes_a_partition_over_counts_on(kafka_cluster: Cluster, settings: dict[str, Any]) -> None:
    topic, dead = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "fails"), ("another", "fails"), ("healthy", "fine")])
    attempts: list[tuple[int, int]] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"fails":
            attempts.append((record.offset, context.attempt))
            raise ValueError("It fails.")

    first = Member(failing(kafka_cluster, topic, dead, {}, **settings), handle)
    wait_for(lambda: len(attempts) >= 2 * A_LIFE)
    second = Member(failing(kafka_cluster, topic, dead, {}, **settings), handle)
    first.stop(drain=False)
    wait_for(lambda: len(read(kafka_cluster, dead, 2)) == 2)
    second.stop(drain=False)
    assert sorted(attempts) == [(offset, attempt) for offset in range(2) for attempt in range(1, MOST + 1)]


def test_a_seek_back_to_a_record_that_failed_counts_on(kafka_cluster: Cluster) -> None:
    topic, dead = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "fails"), ("healthy", "fine")])
    attempts: list[int] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"fails":
            attempts.append(context.attempt)
            raise ValueError("It fails.")

    parallel = failing(kafka_cluster, topic, dead, {})
    member = Member(parallel, handle)
    wait_for(lambda: len(attempts) >= A_LIFE)
    parallel.seek(TopicPartition(topic, partition=0), 0)
    wait_for(lambda: parallel.metrics().dead_letters == 1)
    member.stop()
    assert attempts == list(range(1, MOST + 1))


def test_a_start_at_another_place_counts_on(kafka_cluster: Cluster) -> None:
    topic, dead = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("healthy", "fine"), ("key", "fails")])
    attempts: list[int] = []

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"fails":
            attempts.append(context.attempt)
            raise ValueError("It fails.")

    first = Member(failing(kafka_cluster, topic, dead, {}), handle)
    wait_for(lambda: len(attempts) >= A_LIFE)
    first.stop(drain=False)
    made = len(attempts)
    second = failing(kafka_cluster, topic, dead, {})
    second.subscribe(topic, on_assign=lambda partitions: second.seek(partitions[0], 0))
    member = Member(second, handle)
    wait_for(lambda: len(attempts) > made)
    member.stop(drain=False)
    assert attempts[made] == made + 1


def test_of_earlier_attempts_only_the_number_is_told(kafka_cluster: Cluster) -> None:
    topic, dead = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "fails")])
    parallel = failing(kafka_cluster, topic, dead, {})
    member = Member(parallel, fail)
    wait_for(lambda: parallel.metrics().failed)
    member.stop(drain=False)
    failed = parallel.metrics().failed
    contexts: list[tuple[int, str, float]] = []

    def note(record: ConsumerRecord, context: Context) -> None:
        contexts.append((context.attempt, str(context.last_error), context.last_failed_at or 0))

    successor = Member(consumer(kafka_cluster, topic), note)
    wait_for(lambda: contexts)
    successor.stop()
    [(attempt, error, at)] = contexts
    assert attempt == failed + 1
    assert "only their number was kept" in error
    assert 0 < at <= time.time()
