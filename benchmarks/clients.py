"""How much do priority, futures and addresses cost, beside plain confluent-kafka?

Both sides send the same records with the same settings to one broker and read every value. Rounds alternate, so
that both meet the same machine, and the median of their ratios is what counts. Clocks start when a first record is
delivered: librdkafka takes half a second to get a producer's identity.

Two more ways to produce without Headway say where its time goes: to as many topics as there are levels, and then with
an object for each record that keeps where it is, which is the least that a future can be.
"""

import statistics
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import _objects
import confluent_kafka as ck
from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import PriorityConsumer, Producer
from headway.kafka.producer.delivery import DeliveryFuture

QUESTION = "How much do priority, futures and addresses cost, beside plain confluent-kafka?"
PARTITIONS = 3
IN_FLIGHT = 20_000
OTHER_WAYS = ("three topics", "three topics and an object a record")
SIZES = {"100 B": 100, "1 KB": 1000}
FETCH = {"fetch.queue.backoff.ms": 1, "auto.offset.reset": "earliest"}
PRODUCE = {"linger.ms": 5, "partitioner": "murmur2_random", "enable.idempotence": True}


def measure(report: Report, options: Options) -> None:
    """Produce and consume each size in alternating rounds."""
    count, rounds = (200_000, 3) if options.quick else (500_000, 7)
    with options.broker() as servers:
        for name, size in SIZES.items():
            records = count if size == 100 else count // 2
            produced = [_round(servers, records, size) for _ in range(rounds)]
            for way in range(2):
                rate = statistics.median(rates.other_ways[way] for rates in produced)
                report.add(f"produce {name}", f"confluent-kafka, {OTHER_WAYS[way]}", rate, "records/s")
            _note(report, f"produce {name}", [rates.produce for rates in produced], 0.5)
            _note(report, f"consume {name}", [rates.consume for rates in produced], 0.6)


def _note(report: Report, case: str, rates: list[tuple[float, float]], aim: float) -> None:
    report.add(case, "confluent-kafka", statistics.median(plain for plain, _ in rates), "records/s")
    report.add(case, "headway", statistics.median(ours for _, ours in rates), "records/s")
    ratio = statistics.median(ours / plain for plain, ours in rates)
    report.add(case, "headway / confluent-kafka", ratio, "ratio")
    report.at_least(f"{case}, ratio to plain", ratio, aim)


class Rates(NamedTuple):
    """Of one round, in records per second: plain, and ours."""

    produce: tuple[float, float]
    other_ways: tuple[float, float]
    consume: tuple[float, float]


def _round(servers: str, count: int, size: int) -> Rates:
    topic = f"clients-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    levels = [f"{topic}-{level}" for level in range(3)]
    names = [topic, *levels]
    for done in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        done.result()
    value = b"x" * size
    plain = _produce_plain(servers, [topic], value, count)
    ours = _produce_ours(servers, topic, value, count)
    consume = _consume_plain(servers, topic, count), _consume_ours(servers, topic, count)
    other_ways = (
        _produce_plain(servers, levels, value, count),
        _objects.produce(_plain_producer(servers, levels[0]), levels, value, count, IN_FLIGHT),
    )
    for done in admin.delete_topics(names).values():
        done.result()
    return Rates((plain, ours), other_ways, consume)


def _plain_producer(servers: str, topic: str) -> ck.Producer:
    producer = ck.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, **PRODUCE})
    producer.produce(topic, b"first")
    producer.flush()
    return producer


def _produce_plain(servers: str, topics: Sequence[str], value: bytes, count: int) -> float:
    delivered = 0

    def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
        nonlocal delivered
        assert error is None
        delivered += 1

    producer = _plain_producer(servers, topics[0])
    started = time.perf_counter()
    for i in range(count):
        producer.produce(topics[i % len(topics)], value, str(i), on_delivery=on_delivery)
        if i % 100 == 0:
            producer.poll(0)
    producer.flush()
    assert delivered == count
    return count / (time.perf_counter() - started)


def _produce_ours(servers: str, topic: str, value: bytes, count: int) -> float:
    in_flight: deque[DeliveryFuture] = deque()
    with Producer({"bootstrap.servers": servers, "levels": 3, **PRODUCE}) as producer:
        producer.send(topic, b"first", level=2).result()
        started = time.perf_counter()
        for i in range(count):
            in_flight.append(producer.send(topic, value, str(i), level=i % 3))
            if len(in_flight) == IN_FLIGHT:  # each future is looked at, as a service would
                assert in_flight.popleft().exception() is None
        producer.flush()
        assert sum(producer.metrics().delivered) == count + 1
        assert not any(future.exception() for future in in_flight)
        return count / (time.perf_counter() - started)


def _consume_plain(servers: str, topic: str, count: int) -> float:
    consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": topic, **FETCH})
    consumer.subscribe([topic])
    read = len(consumer.consume(1, 30))
    start = time.perf_counter()
    while read < count:
        messages = consumer.consume(min(500, count - read), 1)  # it waits until it has as many as it was asked for
        for message in messages:
            assert message.error() is None
            message.value()
        read += len(messages)
    rate = count / (time.perf_counter() - start)
    consumer.close()
    return rate


def _consume_ours(servers: str, topic: str, count: int) -> float:
    config = {"bootstrap.servers": servers, "group.id": topic, "levels": 3, "max.poll.records": 500, **FETCH}
    with PriorityConsumer(config) as consumer:
        consumer.subscribe(topic)
        read = len(consumer.poll(30))
        start = time.perf_counter()
        while read < count:
            records = consumer.poll(1)
            for record in records:
                record.value  # noqa: B018 - reading it is what is measured
            read += len(records)
        return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main(QUESTION, measure)
