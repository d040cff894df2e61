"""Records that expire before they can be started: in every way to run, dropped or kept as dead letters."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway import (
    AsyncProducer,
    Batches,
    ConsumerRecord,
    Context,
    Ordering,
    ParallelConsumer,
    Producer,
    ProducerRecord,
)
from headway.errors import ConfigError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, committed, consumer, plain_topic, read, wait_for

pytestmark = pytest.mark.kafka

GONE = -1.0  # seconds: it has expired when it is sent


def note_value(record: ConsumerRecord) -> str:
    return (record.raw_value or b"").decode()


def note_values(records: Sequence[ConsumerRecord]) -> None:
    assert all(note_value(record) == "good" for record in records)


def note_good(record: ConsumerRecord) -> None:
    note_values([record])


async def note_async(record: ConsumerRecord) -> None:
    note_values([record])


def copied(record: ConsumerRecord) -> ProducerRecord:
    note_values([record])
    return ProducerRecord(f"{record.topic}-out", record.value)


def copied_together(records: Sequence[ConsumerRecord]) -> list[ProducerRecord]:
    return [copied(record) for record in records]


def taken(parallel: ParallelConsumer) -> None:
    for record, value in parallel.results(note_value):
        assert (note_value(record), value) == ("good", "good")


RUNS: dict[str, tuple[Callable[[ParallelConsumer], Any], dict[str, Any]]] = {
    "threads": (lambda parallel: parallel.run(note_good), {}),
    "unordered": (lambda parallel: parallel.run(note_good), {"ordering": Ordering.UNORDERED, "adaptive": True}),
    "async": (lambda parallel: parallel.run(note_async), {"commit_mode": "sync"}),
    "processes": (lambda parallel: parallel.run(note_good), {"executor": "process", "processes": 1}),
    "batches": (lambda parallel: parallel.run(note_values, batches=Batches(7)), {"ordering": Ordering.PARTITION}),
    "results": (taken, {}),
    "outputs": (lambda parallel: parallel.run_and_produce(copied), {}),
    "transactions": (lambda parallel: parallel.run_and_produce(copied), {"commit_mode": "transactional"}),
    "batches in transactions": (
        lambda parallel: parallel.run_and_produce(copied_together, batches=Batches(7, linger=0.1)),
        {"commit_mode": "transactional", "ordering": Ordering.UNORDERED},
    ),
}


@pytest.mark.quick("threads-drop", "results-dead_letter", "batches in transactions-drop")
@pytest.mark.parametrize("on_expired", ["drop", "dead_letter"])
@pytest.mark.parametrize("way", RUNS)
def test_what_expired_is_not_started_in_any_way_to_run_and_all_is_committed(
    kafka_cluster: Cluster, way: str, on_expired: str
) -> None:
    topic, (run, options) = plain_topic(kafka_cluster), RUNS[way]
    kafka_cluster.create_topics([f"{topic}-out", f"{topic}-dead"])
    with Producer(kafka_cluster.config({})) as producer:
        for number in range(60):
            late = number % 3 == 1
            fields: dict[str, Any] = {"expires": GONE if late else 600.0, "partition": number % 2}
            producer.send(topic, "late" if late else "good", f"key-{number % 5}", **fields)
    kept = on_expired == "dead_letter"
    options = {**options, "on_expired": on_expired, "dead_letter_topic": f"{topic}-dead"}
    parallel = consumer(kafka_cluster, topic, options, **OFTEN)
    thread = threading.Thread(target=run, args=(parallel,))
    thread.start()
    wait_for(lambda: parallel.metrics().done == 60 or not thread.is_alive())
    wait_for(lambda: parallel.metrics().dead_letters == 20 * kept or not thread.is_alive())
    parallel.stop()
    thread.join(30)
    assert parallel.failure is None
    metrics = parallel.metrics()
    assert (metrics.done, metrics.expired, metrics.failed, metrics.dead_letters) == (60, 20, 0, 20 * kept)
    ends = {partition: offset for partition, (offset, _) in committed(kafka_cluster, topic).items()}
    assert {partition: ends[partition] for partition in (0, 1)} == {0: 30, 1: 30}
    if kept:
        letters = read(kafka_cluster, f"{topic}-dead", 20)
        assert {letter.value() for letter in letters} == {b"late"}
        headers = dict(letters[0].headers() or ())
        assert headers["headway.error.exception"] == b"headway.errors.ExpiredError"
        assert headers["headway.error.reason"] == b"it expired before it was started"
        assert headers["headway.error.attempts"] == b"0"
        assert int(headers["headway.error.expires"] or 0) < time.time() * 1000
        assert "headway.expires" not in headers


def test_what_expires_while_it_waits_behind_another_of_its_key_or_for_its_next_attempt_is_given_up(
    kafka_cluster: Cluster,
) -> None:
    topic, handled = plain_topic(kafka_cluster), list[tuple[str, int]]()
    expires = datetime.now(UTC) + timedelta(seconds=2)

    def handle(record: ConsumerRecord, context: Context) -> None:
        handled.append((note_value(record), context.attempt))
        if record.raw_key == b"slow":
            while datetime.now(UTC) <= expires:
                threading.Event().wait(0.05)
        else:
            raise OSError("the next attempt would be too late")

    with Producer(kafka_cluster.config({})) as producer:
        producer.send(topic, "first", "slow", expires=expires)
        producer.send(topic, "second", "slow", expires=expires)
        producer.send(topic, "third", "failing", expires=expires)
    parallel = consumer(kafka_cluster, topic)
    thread = threading.Thread(target=parallel.run, args=(handle,))
    thread.start()
    wait_for(lambda: parallel.metrics().done == 3)
    parallel.stop()
    thread.join(30)
    assert parallel.metrics().expired == 2
    assert {value for value, _ in handled} == {"first", "third"}


def test_a_consumer_may_say_after_how_long_records_expire_and_a_record_may_say_sooner(kafka_cluster: Cluster) -> None:
    topic, handled = plain_topic(kafka_cluster), list[str]()
    hour_ago = int((time.time() - 3600) * 1000)
    with Producer(kafka_cluster.config({})) as producer:
        producer.send(topic, "old", timestamp=hour_ago)
        producer.send(topic, "old, which says later", timestamp=hour_ago, expires=600)
        producer.send(topic, "new, which says sooner", expires=GONE)
        producer.send(topic, "new", headers=[("headway.expires", b"soon")])
        producer.send(topic, "new, too", headers=[("headway.expires", b"\xb2" * 13), ("headway.expires", None)])
    parallel = consumer(kafka_cluster, topic, {"expires_after": 1800})
    thread = threading.Thread(target=parallel.run, args=(lambda record: handled.append(note_value(record)),))
    thread.start()
    wait_for(lambda: parallel.metrics().done == 5)
    parallel.stop()
    thread.join(30)
    assert sorted(handled) == ["new", "new, too"]
    assert parallel.metrics().expired == 3


def test_each_way_to_send_takes_an_expiry(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    kafka_cluster.create_topics([f"{topic}-1"])
    at = datetime(2100, 1, 1, tzinfo=UTC)
    expected = [("a", b"b"), ("headway.expires", b"%d" % (at.timestamp() * 1000))]
    own: Any = [("a", b"b"), ("headway.expires", b"5")]  # of a record that is sent on
    with Producer(kafka_cluster.config({})) as plain, Producer(kafka_cluster.config({"levels": 2})) as levels:
        plain.send(topic, b"1", headers=own, expires=at)
        plain.send(ProducerRecord(topic, b"2", headers=own, expires=at))
        assert plain.try_send(topic, b"3", headers=iter(own), expires=at)
        assert plain.try_send(ProducerRecord(topic, b"4", headers=dict(own), expires=at))  # type: ignore[arg-type]
        levels.send(topic, b"5", headers=own, level=1, expires=at)
        assert levels.try_send(topic, b"6", headers=own, level=1, expires=at)
        levels.send(ProducerRecord(topic, b"7", headers=own, level=1, expires=at))
        with pytest.raises(ConfigError, match="was given together with other fields"):
            plain.send(ProducerRecord(topic, b"no"), expires=at)
        with pytest.raises(ConfigError, match="would expire before it is due"):
            plain.send(topic, b"no", due=60, expires=30)
        with pytest.raises(ConfigError, match="has no time zone"):
            plain.send(topic, b"no", expires=datetime(2100, 1, 1))

    async def send() -> None:
        async with AsyncProducer(kafka_cluster.config({})) as producer:
            await producer.send(topic, b"8", headers=own, expires=at)
            await producer.send(ProducerRecord(topic, b"9", headers=own, expires=at))

    asyncio.run(send())
    found = [*read(kafka_cluster, topic, 6), *read(kafka_cluster, f"{topic}-1", 3)]
    assert [message.headers() for message in found] == [expected] * 9
    assert sorted(message.value() for message in found) == [b"%d" % number for number in range(1, 10)]  # type: ignore[type-var]


def test_an_expiry_that_cannot_work_is_refused(kafka_cluster: Cluster) -> None:
    for options, said in (
        ({"expires_after": 0}, "expires_after is 0"),
        ({"expires_after": "5"}, "expires_after is '5'"),
        ({"on_expired": "keep"}, "on_expired is 'keep'"),
        ({"on_expired": "dead_letter"}, "there is no dead_letter_topic"),
    ):
        with pytest.raises(ConfigError, match=said):
            ParallelConsumer(kafka_cluster.config({"group.id": "g"}), **options)
