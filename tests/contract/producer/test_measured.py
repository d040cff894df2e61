"""What each metric of a producer means, shown by runs in which the right values are known."""

import asyncio
import time

import pytest

from headway import AsyncProducer, Producer
from headway.errors import BufferFullError
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Sample
from headway.metrics.table import METRICS
from tests.contract.conftest import Cluster

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "client.id": "till"}


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, without the client. Of a histogram the number of values."""
    return {
        each.labels[1:]: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in samples
        if each.name == f"headway_{name}"
    }


def histogram(samples: list[Sample], name: str) -> HistogramValue:
    """The values of a histogram, over all labels."""
    found = [each.value for each in samples if each.name == f"headway_{name}"]
    return sum((each for each in found[1:] if isinstance(each, HistogramValue)), found[0])  # type: ignore[return-value]


@pytest.mark.kafka
def test_the_metrics_of_a_producer_are_what_happened(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic()
    settings = {"client.id": "till", "statistics.interval.ms": 100, "linger.ms": 20}
    with kafka_cluster.producer(**settings) as producer:
        producer.send(topic, b"not measured", level=1).result(30)
        measure = producer.measure()
        assert producer.measure() == measure
        for number in range(500):
            producer.send(topic, b"x", str(number), level=0)
        assert values(measure(), "producer_sent_total")[topic, "0"] == 500
        for level, partition in ((1, 0), (1, 1), (2, 3)):
            producer.send(topic, b"x", level=level, partition=partition).result(30)
        producer.send(topic, 3.5, level=2)
        assert producer.flush(30) == 0
        deadline = time.monotonic() + 30
        while not values(measure(), "librdkafka_batch_records") and time.monotonic() < deadline:
            producer.send(topic, b"x", level=0).result(30)
        samples = measure()
        assert {each.labels[0] for each in samples} == {"till"}
        assert values(samples, "librdkafka_broker_up")[kafka_cluster.bootstrap_servers,] == 1
        batches = values(samples, "librdkafka_batch_records")
        assert batches
        assert {kafka_topic for (kafka_topic,) in batches} <= {f"{topic}-{level}" for level in range(3)}
    closed = measure()  # the last totals, after the producer was closed
    sent = values(closed, "producer_sent_total")
    assert sent[topic, "0"] >= 500
    assert (sent[topic, "1"], sent[topic, "2"]) == (3, 2)
    delivered = values(closed, "producer_delivered_total")
    assert (delivered[topic, "0"], delivered[topic, "1"], delivered[topic, "2"]) == (sent[topic, "0"], 3, 1)
    assert values(closed, "producer_failed_total") == {(topic, "2", "SerializationError"): 1}
    assert set(values(closed, "producer_expired_total").values()) == {0}
    assert set(values(closed, "producer_buffered").values()) == {0}
    assert values(closed, "producer_buffered_bytes") == {(): 0}
    times = values(closed, "producer_delivery_seconds")
    assert times == {("0",): delivered[topic, "0"], ("1",): 2, ("2",): 1}  # without the record before the measurements
    mean = histogram(closed, "producer_delivery_seconds").mean
    assert mean is not None
    assert 0.0001 < mean < 10
    assert {each.name for each in closed} <= METRICS.keys()


def test_what_waits_and_what_found_no_space_is_counted() -> None:
    settings = {**NOWHERE, "levels": 2, "buffer.memory": 10_000, "max.block.ms": 60}
    producer = Producer(settings)
    measure = producer.measure()
    futures = [producer.send("orders", b"x" * 1000, level=1) for _ in range(20)]
    refused = sum(isinstance(each.exception(0), BufferFullError) for each in futures if each.done())
    assert 0 < refused < 20
    samples = measure()
    assert values(samples, "producer_buffered") == {("orders", "1"): 20 - refused}
    assert values(samples, "producer_refused_total") == {(): refused}
    assert values(samples, "producer_failed_total") == {("orders", "1", "BufferFullError"): refused}
    assert values(samples, "producer_buffer_limit_bytes") == {(): 10_000}
    assert values(samples, "producer_buffered_bytes")[()] > (20 - refused) * 1000
    waits = histogram(samples, "producer_send_wait_seconds")
    assert waits.count == refused
    assert waits.sum >= refused * 0.06
    assert values(samples, "producer_delivery_seconds") == {("1",): 0}
    producer.close(timeout=0)
    assert values(measure(), "producer_buffered") == {("orders", "1"): 0}
    assert values(measure(), "producer_failed_total")["orders", "1", "DeliveryError"] == 20 - refused


def test_a_producer_that_raises_counts_what_it_refused() -> None:
    producer = Producer({**NOWHERE, "queue.buffering.max.messages": 1}, on_full="raise")
    measure = producer.measure()
    producer.send("orders", b"1")
    for _ in range(3):
        with pytest.raises(BufferFullError):
            producer.send("orders", b"2")
    samples = measure()
    assert values(samples, "producer_refused_total") == {(): 3}
    assert values(samples, "producer_sent_total") == {("orders", ""): 1}
    assert histogram(samples, "producer_send_wait_seconds").count == 0
    producer.close(timeout=0)


def test_a_record_that_is_not_delivered_in_time_counts_as_expired() -> None:
    settings = {"delivery.timeout.ms": 300, "request.timeout.ms": 100, "linger.ms": 0}
    producer = Producer({**NOWHERE, **settings})
    measure = producer.measure()
    future = producer.send("orders", b"1")
    assert future.exception(30) is not None
    assert values(measure(), "producer_expired_total") == {("orders", ""): 1}
    assert values(measure(), "producer_failed_total") == {("orders", "", "DeliveryError"): 1}
    producer.close(timeout=0)


@pytest.mark.kafka
async def test_an_asyncio_producer_is_measured_too(kafka_cluster: Cluster) -> None:
    topic = kafka_cluster.topic(levels=1)
    config = kafka_cluster.config({"levels": 1, "buffer.memory": 20_000, "linger.ms": 0})
    async with AsyncProducer(config) as producer:
        measure = producer.measure()
        await asyncio.gather(*(producer.send(topic, b"x" * 500) for _ in range(200)))
        samples = measure()
    assert values(samples, "producer_delivered_total") == {(topic, "0"): 200}
    assert values(samples, "producer_delivery_seconds") == {("0",): 200}
    assert histogram(samples, "producer_send_wait_seconds").count > 100
