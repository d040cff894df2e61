"""How many records a second can a producer send to a broker that is near, or far away?

Everyone sends the same records, in one run, with idempotence and the same settings where there are any, and counts
only what was reported. Clocks start when a first record is delivered: librdkafka takes half a second to get an
identity. A broker that is far away is behind a proxy that adds the round trip.
"""

import asyncio
import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka as ck
import kafka  # type: ignore[import-untyped]
from _bare_awaiting import BareAwaiting
from _harness import Options, Report, main
from _proxied import proxied
from confluent_kafka.admin import AdminClient
from confluent_kafka.aio import AIOProducer
from confluent_kafka.cimpl import NewTopic

from headway import AsyncProducer, Producer
from headway.kafka.producer.delivery import DeliveryFuture

QUESTION = "How many records a second can a producer send?"
PARTITIONS = 3
AT_ONCE = 10_000  # awaited
THREADS = 4
LOOKED_AT_AFTER = 50_000  # so many more: by then they are reported, and to look is not to wait
ROUND_TRIPS = (0.0, 0.001, 0.005, 0.020)
SIZES = {"100 B": 100, "1 KB": 1000}
SETTINGS = {"linger.ms": 5, "enable.idempotence": True}

Send = Callable[[str, str, bytes, int], float]
"""(servers, topic, value, count) -> records a second."""


def synchronous(servers: str, topic: str, value: bytes, count: int) -> float:
    """confluent-kafka, each record awaited before the next."""
    producer = ck.Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
    producer.produce(topic, value)
    producer.flush()
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, str(number))
        producer.flush()
    return count / (time.perf_counter() - started)


def plain(servers: str, topic: str, value: bytes, count: int) -> float:
    """confluent-kafka with a callback for each record."""
    delivered = 0

    def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
        nonlocal delivered
        assert error is None
        delivered += 1

    producer = ck.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, **SETTINGS})
    producer.produce(topic, value, on_delivery=on_delivery)
    producer.flush()
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, str(number), on_delivery=on_delivery)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush()
    assert delivered == count + 1
    return count / (time.perf_counter() - started)


class Place:
    """Where a record is: the least that a future can be."""

    __slots__ = ("offset", "partition", "timestamp")

    def __call__(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        """Take the report."""
        assert error is None
        self.partition, self.offset, self.timestamp = message.partition(), message.offset(), message.timestamp()[1]


def objects(servers: str, topic: str, value: bytes, count: int) -> float:
    """confluent-kafka with an object for each record."""
    producer = ck.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, **SETTINGS})
    producer.produce(topic, value)
    producer.flush()
    places: deque[Place] = deque(maxlen=LOOKED_AT_AFTER)
    started = time.perf_counter()
    for number in range(count):
        place = Place()
        places.append(place)
        producer.produce(topic, value, str(number), on_delivery=place)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush()
    rate = count / (time.perf_counter() - started)
    assert all(place.offset is not None and place.offset >= 0 for place in places)
    return rate


def ours(servers: str, topic: str, value: bytes, count: int) -> float:
    """Headway, each future looked at."""
    futures: deque[DeliveryFuture] = deque()
    with Producer({"bootstrap.servers": servers, **SETTINGS}) as producer:
        producer.send(topic, value).result()
        started = time.perf_counter()
        for number in range(count):
            futures.append(producer.send(topic, value, str(number)))
            if len(futures) == LOOKED_AT_AFTER:
                assert futures.popleft().exception() is None
        producer.flush()
        rate = count / (time.perf_counter() - started)
        assert producer.metrics().delivered == [count + 1]
    return rate


def _by_threads(send: Callable[[int], object], count: int) -> None:
    """Call that for each number, by `THREADS` at once."""

    def some(first: int) -> None:
        for number in range(first, count, THREADS):
            send(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(some, range(THREADS)):
            pass


def plain_by_threads(servers: str, topic: str, value: bytes, count: int) -> float:
    """confluent-kafka with a callback for each record, from several threads."""
    failed = 0

    def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
        nonlocal failed
        failed += error is not None

    def send(number: int) -> None:
        producer.produce(topic, value, str(number), on_delivery=on_delivery)
        if number % 100 < THREADS:
            producer.poll(0)

    producer = ck.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, **SETTINGS})
    producer.produce(topic, value, on_delivery=on_delivery)
    producer.flush()
    started = time.perf_counter()
    _by_threads(send, count)
    assert producer.flush() == failed == 0
    return count / (time.perf_counter() - started)


def ours_by_threads(servers: str, topic: str, value: bytes, count: int) -> float:
    """Headway, from several threads."""
    with Producer({"bootstrap.servers": servers, **SETTINGS}) as producer:
        producer.send(topic, value).result()
        started = time.perf_counter()
        _by_threads(lambda number: producer.send(topic, value, str(number)), count)
        producer.flush()
        rate = count / (time.perf_counter() - started)
        assert producer.metrics().delivered == [count + 1]
    return rate


def kafka_python(servers: str, topic: str, value: bytes, count: int) -> float:
    """kafka-python, its futures looked at in the end."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, linger_ms=5, acks="all", enable_idempotence=True)
    producer.send(topic, value).get(30)
    started = time.perf_counter()
    futures = [producer.send(topic, value, str(number).encode()) for number in range(count)]
    producer.flush()
    rate = count / (time.perf_counter() - started)
    assert all(future.succeeded() for future in futures)
    producer.close()
    return rate


def awaiting(run: Callable[[str, str, bytes, int], Coroutine[Any, Any, float]]) -> Send:
    """An async way to send, as a synchronous one."""
    return lambda *args: asyncio.run(run(*args))


Begin = Callable[[str], asyncio.Future[Any] | Coroutine[Any, Any, asyncio.Future[Any]]]
"""Send a record with this key: gives a future for its delivery, at once or when it is awaited."""


async def _all(begin: Begin, count: int) -> float:
    """Await that many in their order, `AT_ONCE` of them under way."""
    under_way: deque[asyncio.Future[Any]] = deque()
    started = time.perf_counter()
    for number in range(count):
        begun = begin(str(number))
        under_way.append(begun if isinstance(begun, asyncio.Future) else await begun)
        if len(under_way) == AT_ONCE:
            await under_way.popleft()
    while under_way:
        await under_way.popleft()
    return count / (time.perf_counter() - started)


async def _all_by_tasks(send: Callable[[str], asyncio.Future[Any]], count: int) -> float:
    """Await that many, each by one of `AT_ONCE` tasks."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await send(str(number))

    started = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - started)


async def bare_awaited(servers: str, topic: str, value: bytes, count: int) -> float:
    """The least that a producer for asyncio can be, its futures awaited."""
    producer = BareAwaiting({"bootstrap.servers": servers, **SETTINGS})
    await producer.send(topic, value, "first")
    rate = await _all(lambda key: producer.send(topic, value, key), count)
    producer.close()
    return rate


async def ours_awaited(servers: str, topic: str, value: bytes, count: int) -> float:
    """Headway for asyncio, its futures awaited. Its topic is level 0 of one."""
    async with AsyncProducer({"bootstrap.servers": servers, "levels": 1, **SETTINGS}) as producer:
        logical = topic.removesuffix("-0")
        await producer.send(logical, value)
        return await _all(lambda key: producer.send(logical, value, key), count)


async def ours_by_tasks(servers: str, topic: str, value: bytes, count: int) -> float:
    """Headway for asyncio, each record awaited by one of many tasks, which is what then costs most."""
    async with AsyncProducer({"bootstrap.servers": servers, "levels": 1, **SETTINGS}) as producer:
        logical = topic.removesuffix("-0")
        await producer.send(logical, value)
        return await _all_by_tasks(lambda key: producer.send(logical, value, key), count)


async def confluent_awaited(servers: str, topic: str, value: bytes, count: int) -> float:
    """confluent-kafka's AIOProducer, its futures awaited."""
    producer = AIOProducer({"bootstrap.servers": servers, **SETTINGS}, batch_size=1000, buffer_timeout=0.005)
    await (await producer.produce(topic, value=value, key="first"))
    rate = await _all(lambda key: producer.produce(topic, value=value, key=key), count)
    await producer.close()
    return rate


async def aiokafka_awaited(servers: str, topic: str, value: bytes, count: int) -> float:
    """aiokafka, its futures awaited."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5, enable_idempotence=True)
    await producer.start()
    await producer.send_and_wait(topic, value)
    rate = await _all(lambda key: producer.send(topic, value, key.encode()), count)
    await producer.stop()
    return rate


# Each with the part of all records that it gets, for slow ones; neighbours meet the same machine.
SYSTEMS: dict[str, tuple[Send, float]] = {
    "confluent-kafka, one at a time": (synchronous, 0.0005),
    "confluent-kafka, an object a record": (objects, 1),
    "confluent-kafka, callbacks": (plain, 1),
    "headway, futures": (ours, 1),
    f"confluent-kafka, callbacks, {THREADS} threads": (plain_by_threads, 0.5),
    f"headway, futures, {THREADS} threads": (ours_by_threads, 0.5),
    "kafka-python, futures": (kafka_python, 0.02),
    "a bare future a record, awaited": (awaiting(bare_awaited), 0.5),
    "headway, awaited": (awaiting(ours_awaited), 0.5),
    f"headway, awaited by {AT_ONCE:,} tasks": (awaiting(ours_by_tasks), 0.25),
    "confluent-kafka's AIOProducer, awaited": (awaiting(confluent_awaited), 0.1),
    "aiokafka, awaited": (awaiting(aiokafka_awaited), 0.02),
}
Rates = dict[str, list[float]]
"""Of each system, in the order of the rounds."""


def measure(report: Report, options: Options) -> None:
    """Every system at every distance and size, in alternating rounds."""
    count, rounds = (60_000, 1) if options.quick else (300_000, 5)
    with options.broker() as servers:
        for round_trip in (0.0, 0.005) if options.quick else ROUND_TRIPS:
            with proxied(servers, round_trip) as through:
                for name, size in SIZES.items():
                    case = f"{name}, {round_trip * 1000:g} ms"
                    rates = _compare(servers, through, size, count, rounds)
                    for system, measured in rates.items():
                        report.add(case, system, statistics.median(measured), "records/s")
                    _judge(report, case, round_trip, rates)


def _compare(servers: str, through: str, size: int, count: int, rounds: int) -> Rates:
    rates: Rates = {system: [] for system in SYSTEMS}
    systems = list(SYSTEMS.items())
    for _ in range(rounds):
        topic = f"producer-{uuid.uuid4().hex[:8]}-0"
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
        for system, (send, part) in systems:
            rates[system].append(send(through, topic, b"x" * size, int(count * part)))
        systems.reverse()  # who comes first meets a broker with less to write to its disk
        admin.delete_topics([topic])[topic].result()
    return rates


def _judge(report: Report, case: str, round_trip: float, rates: Rates) -> None:
    def ratio(of: str, to: str) -> float:
        return statistics.median(one / other for one, other in zip(rates[of], rates[to], strict=True))

    futures = ratio("headway, futures", "confluent-kafka, callbacks")
    report.at_least(f"{case}: futures, ratio to callbacks", futures, 0.95 if round_trip >= 0.005 else 0.6)
    if round_trip == 0.005:
        times = ratio("headway, futures", "confluent-kafka, one at a time")
        report.at_least(f"{case}: times as fast as one at a time", times, 100)
    threads = ratio(f"headway, futures, {THREADS} threads", f"confluent-kafka, callbacks, {THREADS} threads")
    report.at_least(f"{case}: futures by {THREADS} threads, ratio to callbacks", threads, 0.6)
    awaited = ratio("headway, awaited", "a bare future a record, awaited")
    report.at_least(f"{case}: awaited, ratio to a bare future", awaited, 0.8)
    if not round_trip and case.startswith("100 B"):
        report.at_least(f"{case}: awaited, records/s", statistics.median(rates["headway, awaited"]), 150_000)


if __name__ == "__main__":
    main(QUESTION, measure)
