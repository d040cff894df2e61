"""Fatal errors of librdkafka's producer: they end what it holds, and not the producer of the user."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from headway import (
    AsyncProducer,
    ConsumerRecord,
    Context,
    ParallelConsumer,
    Producer,
    ProducerRecord,
    Retries,
    fixed_backoff,
)
from headway.errors import DeliveryError, KafkaError
from headway.kafka.binding.capi import Client, wake_on_events
from headway.kafka.producer import report_pump
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.contract.parallel.members import wait_for

PRODUCE, END_TRANSACTION = 0, 26
OUT_OF_ORDER_SEQUENCE, INVALID_TXN_STATE, PRODUCER_FENCED = 45, 48, 90
COUNT = 10


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        brokers.create("orders")
        yield brokers


def is_delivered(producer: Producer) -> bool:
    try:
        return producer.send("orders", b"later", partition=0).result(30).offset >= 0
    except DeliveryError:
        return False


def test_a_producer_goes_on_after_a_fatal_error_that_failed_its_records(brokers: MockBrokers) -> None:
    with Producer({"bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 0}) as producer:
        for _ in range(2):
            brokers.refuse(PRODUCE, OUT_OF_ORDER_SEQUENCE, times=1)
            with pytest.raises(DeliveryError, match="out of order sequence number"):
                producer.send("orders", b"1", partition=0).result(30)
            wait_for(lambda: is_delivered(producer))
            assert producer.send("orders", b"2", partition=0).result(30).offset >= 0


@pytest.mark.parametrize("slow", [False, True])
def test_a_producer_for_asyncio_goes_on_after_a_fatal_error(
    brokers: MockBrokers, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    def watch_late(client: Client, fd: int | None) -> None:
        time.sleep(0.5)  # the new producer delivers a record before it can wake the loop
        wake_on_events(client, fd)

    async def is_sent(producer: AsyncProducer) -> bool:
        try:
            return (await producer.send("orders", b"1", partition=0)).offset >= 0
        except DeliveryError:
            return False

    async def main() -> None:
        async with AsyncProducer({"bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 0}) as producer:
            brokers.refuse(PRODUCE, OUT_OF_ORDER_SEQUENCE, times=1)
            if slow:
                monkeypatch.setattr(report_pump, "wake_on_events", watch_late)
            assert not await is_sent(producer)
            while not await is_sent(producer):
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_outputs_of_a_run_are_stored_after_fatal_errors(brokers: MockBrokers) -> None:
    servers = {"bootstrap.servers": brokers.bootstrap_servers}
    brokers.create("copies")
    with Producer(servers) as producer:
        for number in range(COUNT):
            producer.send("orders", str(number), "key")

    def copy(record: ConsumerRecord, context: Context) -> ProducerRecord:
        if record.offset in (2, 6) and context.attempt == 1:
            brokers.refuse(PRODUCE, OUT_OF_ORDER_SEQUENCE, times=1)
        return ProducerRecord("copies", record.value)

    consumer = ParallelConsumer(
        {**servers, "group.id": "copying", "auto.offset.reset": "earliest"},
        retries=Retries(fixed_backoff(0.2)),
    )
    consumer.subscribe("orders")
    thread = threading.Thread(target=consumer.run_and_produce, args=[copy])
    thread.start()
    try:
        wait_for(lambda: consumer.metrics().done == COUNT, seconds=60)
    finally:
        consumer.close()
        thread.join(30)
    assert not thread.is_alive()


def test_a_gapless_producer_ends_with_the_error_as_it_was_asked_to(brokers: MockBrokers) -> None:
    settings = {"bootstrap.servers": brokers.bootstrap_servers, "linger.ms": 0, "enable.gapless.guarantee": True}
    with Producer(settings) as producer:
        brokers.refuse(PRODUCE, OUT_OF_ORDER_SEQUENCE, times=1)
        for _ in range(3):
            with pytest.raises(DeliveryError):
                producer.send("orders", b"1", partition=0).result(30)


def test_an_abort_after_a_fatal_error_that_is_no_takeover_says_that_it_failed(brokers: MockBrokers) -> None:
    for error, notes in ((INVALID_TXN_STATE, 1), (PRODUCER_FENCED, 0)):
        settings = {"bootstrap.servers": brokers.bootstrap_servers, "transactional.id": f"id-{error}"}
        with Producer(settings) as producer:
            producer.init_transactions()
            brokers.refuse(END_TRANSACTION, error, times=1)
            with pytest.raises(KafkaError) as raised, producer.transaction():
                producer.send("orders", b"1")
            assert len(getattr(raised.value, "__notes__", ())) == notes
