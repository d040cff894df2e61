"""An outage of what all handlers need: the circuit breaker opens, keeps records from ending, and closes by itself."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from headway import (
    Batches,
    CircuitBreaker,
    ConsumerRecord,
    Context,
    FatalError,
    ParallelConsumer,
    Producer,
    ProducerRecord,
    Retries,
    fixed_backoff,
)
from headway.errors import ConfigError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, consumer, plain_topic, wait_for

pytestmark = pytest.mark.kafka

COUNT = 60


class Bank:
    """What the handlers need; it notes how many call at a time."""

    def __init__(self) -> None:
        self.is_down = True
        self.calls = 0
        self.most_at_a_time = 0
        self._now = 0
        self._lock = threading.Lock()

    def call(self, count: int = 1) -> None:
        with self._lock:
            self._now += 1
            self.calls += count
            self.most_at_a_time = max(self.most_at_a_time, self._now)
        threading.Event().wait(0.01)
        with self._lock:
            self._now -= 1
        if self.is_down:
            raise ConnectionError("the bank is down")


Run = Callable[[ParallelConsumer, Bank], Any]


def in_threads(parallel: ParallelConsumer, bank: Bank) -> None:
    parallel.run(lambda record: bank.call())


def in_a_loop(parallel: ParallelConsumer, bank: Bank) -> None:
    async def handle(record: ConsumerRecord, context: Context) -> None:
        await asyncio.to_thread(bank.call)

    parallel.run(handle)


def in_batches(parallel: ParallelConsumer, bank: Bank) -> None:
    def handle(records: Sequence[ConsumerRecord]) -> ProducerRecord:
        bank.call(len(records))
        return ProducerRecord(f"{records[0].topic}-dead", b"%d" % len(records))

    parallel.run_and_produce(handle, batches=Batches(2))


@pytest.mark.quick("async", "transactional")
@pytest.mark.parametrize(
    ("run", "options"),
    [
        (in_threads, {}),
        (in_a_loop, {}),
        (in_batches, {}),
        (in_batches, {"commit_mode": "transactional"}),
    ],
    ids=["threads", "async", "batches", "transactional"],
)
def test_an_outage_opens_the_circuit_before_records_end_and_they_are_handled_when_it_is_over(
    kafka_cluster: Cluster, run: Run, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headway")
    topic, bank = plain_topic(kafka_cluster), Bank()
    kafka_cluster.create_topics([f"{topic}-dead"])
    with Producer(kafka_cluster.config({})) as producer:
        for number in range(COUNT):
            producer.send(topic, b"pay", b"key-%d" % number)
    options |= {
        "retries": Retries(fixed_backoff(0.05), max_attempts=2),
        "dead_letter_topic": f"{topic}-dead",
        "circuit_breaker": CircuitBreaker(least=5, longest=1.0),
        "max_concurrency": 8,
    }
    parallel = consumer(kafka_cluster, topic, options, **OFTEN)
    thread = threading.Thread(target=run, args=(parallel, bank))
    thread.start()
    try:
        wait_for(lambda: parallel.metrics().circuit_open)
        wait_for(lambda: not parallel.metrics().running)
        calls, began = bank.calls, time.monotonic()
        bank.most_at_a_time = 0
        wait_for(lambda: bank.calls >= calls + 3)
        assert time.monotonic() - began > 1.5  # a probe a second
        assert bank.most_at_a_time == 1
        assert parallel.metrics().circuit_open
        bank.is_down = False
        wait_for(lambda: parallel.metrics().done == COUNT)
        assert not parallel.metrics().circuit_open
    finally:
        bank.is_down = False
        parallel.stop()
        thread.join(30)
    assert parallel.failure is None
    assert parallel.metrics().dead_letters == 0
    told = [message for message in caplog.messages if "circuit breaker" in message]
    assert [message.partition(",")[0].partition(":")[0] for message in told] == [
        "The circuit breaker is open",
        "The circuit breaker is closed",
    ]
    assert "ConnectionError('the bank is down')" in told[0]


def test_bad_records_and_what_a_handler_says_of_its_record_open_nothing(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    kafka_cluster.create_topics([f"{topic}-dead"])
    with Producer(kafka_cluster.config({})) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number, b"one" if number % 2 else b"key-%d" % number)
    was_open = list[bool]()

    def handle(record: ConsumerRecord) -> None:
        was_open.append(parallel.metrics().circuit_open)
        if record.raw_key == b"one":
            raise ConnectionError("all records of a key, which is none of the others' affair")
        raise FatalError("so it is with all of these")

    options = {
        "retries": Retries(fixed_backoff(0.001), max_attempts=2),
        "dead_letter_topic": f"{topic}-dead",
        "circuit_breaker": CircuitBreaker(least=2),
    }
    parallel = consumer(kafka_cluster, topic, options)
    thread = threading.Thread(target=parallel.run, args=(handle,))
    thread.start()
    try:
        wait_for(lambda: parallel.metrics().dead_letters == COUNT)
    finally:
        parallel.stop()
        thread.join(30)
    assert not any(was_open)


def test_a_circuit_breaker_that_is_none_is_refused(kafka_cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="circuit_breaker is True"):
        ParallelConsumer(kafka_cluster.config({"group.id": "g"}), circuit_breaker=True)  # type: ignore[arg-type]


def test_records_that_always_fail_are_not_every_probe_while_others_wait(mock_cluster: Cluster) -> None:
    topic = plain_topic(mock_cluster)
    handled = list[bytes]()

    def handle(record: ConsumerRecord) -> None:
        if record.key.startswith(b"bad"):
            raise ConnectionError("this record never succeeds")
        handled.append(record.key)

    breaker = CircuitBreaker(failing=0.5, least=5, window=30.0, longest=1.0)
    options: dict[str, Any] = {"retries": Retries(fixed_backoff(0.05)), "circuit_breaker": breaker}
    parallel = consumer(mock_cluster, topic, {"max_concurrency": 16} | options, **OFTEN)
    runs = threading.Thread(target=parallel.run, args=(handle,))
    runs.start()
    with closing(Producer(mock_cluster.config({}))) as producer:
        try:
            for number in range(5):
                producer.send(topic, b"", key=f"bad-{number}", partition=0).result(30)
            wait_for(lambda: parallel.metrics().circuit_open)
            for number in range(20):
                producer.send(topic, b"", key=f"good-{number}", partition=0).result(30)
            wait_for(lambda: len(handled) == 20)
        finally:
            parallel.close(drain=False)
            runs.join(30)


def test_a_bad_record_in_each_batch_keeps_the_circuit_open_for_no_healthy_one(mock_cluster: Cluster) -> None:
    """A batch with outputs fails as a whole, so a probe of a batch would fail for its one bad record each time."""
    topic, handled = plain_topic(mock_cluster), set[bytes]()
    mock_cluster.create_topics([f"{topic}-out"])
    is_down = threading.Event()
    is_down.set()

    def handle(records: Sequence[ConsumerRecord]) -> list[ProducerRecord]:
        if is_down.is_set() or any(record.key.startswith(b"bad") for record in records):
            raise ConnectionError("the bank is down, or one record of the batch never succeeds")
        handled.update(record.key for record in records)
        return [ProducerRecord(f"{topic}-out", record.key) for record in records]

    breaker = CircuitBreaker(failing=0.05, least=2, longest=1.0)
    options: dict[str, Any] = {"retries": Retries(fixed_backoff(0.05)), "circuit_breaker": breaker}
    options |= {"ordering": "unordered", "max_concurrency": 2}
    with closing(Producer(mock_cluster.config({}))) as producer:
        keys = [f"bad-{number}" if number % 5 == 0 else f"good-{number}" for number in range(10)]
        for future in [producer.send(topic, b"", key=key, partition=0) for key in keys]:
            future.result(30)
    parallel = consumer(mock_cluster, topic, options, **OFTEN)
    runs = threading.Thread(target=parallel.run_and_produce, args=(handle,), kwargs={"batches": Batches(5)})
    runs.start()
    try:
        wait_for(lambda: parallel.metrics().circuit_open)
        is_down.clear()
        wait_for(lambda: len(handled) == 8)
    finally:
        parallel.close(drain=False)
        runs.join(30)
