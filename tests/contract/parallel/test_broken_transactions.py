"""Transactions that brokers break: only a producer that was fenced off has to end."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headway import ConsumerRecord, ParallelConsumer, Producer, ProducerRecord
from headway.errors import FencedError, HeadwayError
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.contract.parallel.members import wait_for

COUNT = 5
PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSETS = 0, 24, 25, 26, 28  # Kafka's requests
INVALID_TXN_STATE, OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED = 48, 45, 47, 90  # and its errors
IDS: dict[str, dict[str, str]] = {"an id of the user's own": {"transactional.id": "mine"}, "an id of Headway's": {}}


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        brokers.create("orders")
        brokers.create("copies")
        with Producer({"bootstrap.servers": brokers.bootstrap_servers}) as producer:
            for number in range(COUNT):
                producer.send("orders", str(number), "key")
        yield brokers


@contextmanager
def running(brokers: MockBrokers, own: dict[str, str]) -> Iterator[tuple[ParallelConsumer, Callable[[], int]]]:
    """A consumer that copies records in transactions, and how many of them are committed."""
    committed: dict[Any, int] = {}
    settings = {"group.id": "copying", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 20}
    # The mock lets a member that joins again wait until its last membership has timed out.
    settings |= {"bootstrap.servers": brokers.bootstrap_servers, "session.timeout.ms": 6000}
    consumer = ParallelConsumer(settings, commit_mode="transactional", producer_config=own)
    consumer.subscribe("orders", on_commit=lambda error, offsets: None if error else committed.update(offsets))

    def copy(record: ConsumerRecord) -> ProducerRecord:
        return ProducerRecord("copies", record.value)

    def run() -> None:
        with contextlib.suppress(HeadwayError):  # it is in `failure`
            consumer.run_and_produce(copy)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield consumer, lambda: sum(committed.values())
    finally:
        consumer.close(drain=False)
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("own", IDS.values(), ids=IDS)
@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(PRODUCE, OUT_OF_ORDER_SEQUENCE, id="a sequence that broker and client do not agree on"),
        pytest.param(ADD_PARTITIONS, INVALID_TXN_STATE, id="the state of the transaction, at its first record"),
        pytest.param(ADD_OFFSETS, INVALID_TXN_STATE, id="the state of the transaction, at its group"),
        pytest.param(COMMIT_OFFSETS, INVALID_TXN_STATE, id="the state of the transaction, at its offsets"),
        pytest.param(END_TRANSACTION, INVALID_TXN_STATE, id="the state of the transaction, at its end"),
    ],
)
def test_a_fatal_error_that_is_not_a_takeover_ends_no_run(
    brokers: MockBrokers, own: dict[str, str], request_: int, error: int
) -> None:
    brokers.refuse(request_, error, times=1)
    with running(brokers, own) as (consumer, committed):
        wait_for(lambda: committed() == COUNT or consumer.failure, seconds=120)
    assert consumer.failure is None


@pytest.mark.parametrize(
    ("request_", "error"),
    [(PRODUCE, INVALID_PRODUCER_EPOCH), (END_TRANSACTION, INVALID_PRODUCER_EPOCH), (END_TRANSACTION, PRODUCER_FENCED)],
)
def test_a_run_whose_own_id_was_taken_over_ends_with_a_sentence(
    brokers: MockBrokers, request_: int, error: int
) -> None:
    brokers.refuse(request_, error, times=1)
    with running(brokers, IDS["an id of the user's own"]) as (consumer, _):
        wait_for(lambda: consumer.failure is not None, seconds=60)
    assert isinstance(consumer.failure, FencedError)
    assert "If another process uses the same transactional.id, give each process an id of its own." in str(
        consumer.failure
    )
