"""How long does a quiet partition's record wait beside floods of its level, and healthy records beside failing ones?

Floods of 1 KB records lie in 1, 10 or 300 partitions, or in another topic. Meanwhile a record goes to a quiet partition
every 50 ms; its wait is from Kafka's acknowledgement to its handler, or to the poll that returns it. The parallel
consumer has 50 slots of 10 ms; the bound is two rounds of these and 50 ms. Records that fail have a quarter of the
slots while healthy ones wait.

A flood by tenant is 100,000 records of one tenant, in the same partitions as those of 99 others, which send a record a
second each. A flood by key is the same with one hot key and a new key for each other record. The bound is twice what
the others wait alone, or one handler where that is more. All that is left of the flood fits the memory of a level.
"""

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import confluent_kafka as ck
from _harness import Options, Report, main, percentile
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ConsumerRecord, Ordering, ParallelConsumer, PriorityConsumer, Retries, fixed_backoff

QUESTION = "What does a quiet partition wait beside a flood, and a healthy record beside failing ones?"
SLOTS, HANDLER = 50, 0.010
BOUND_MS = (2 * HANDLER + 0.050) * 1000
EVERY = 0.050
READ_IN = int(1 / EVERY)  # records of the first second, in which the flood is read from Kafka
FLOOD = b"x" * 1000
HOT = b"hot"
OTHERS, FLOOD_OF_TENANT = 99, 100_000

Started = Callable[[ConsumerRecord], None]


class Waits:
    """The waits of the quiet records, by their numbers."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, float] = {}
        self.started: dict[int, float] = {}
        self.of_flood = 0

    def acknowledge(self, number: int, _error: object, _message: object) -> None:
        """Note that Kafka has a record."""
        self.acknowledged[number] = time.monotonic()

    def start(self, record: ConsumerRecord) -> None:
        """Note that a record starts."""
        if record.raw_key in (None, HOT):
            self.of_flood += 1
        else:
            self.started[int(record.raw_key)] = time.monotonic()

    def in_ms(self, first: int = 0, until: int | None = None) -> list[float]:
        """Return the waits of what was acknowledged, by numbers; what never started has waited until now."""
        now = time.monotonic()
        numbers = range(first, len(self.acknowledged) if until is None else until)
        return [1000 * max(0.0, self.started.get(each, now) - self.acknowledged[each]) for each in numbers]


def fill(
    servers: str,
    topic: str,
    partitions: int,
    count: int,
    value: bytes = FLOOD,
    key: bytes | None = None,
    headers: Any = None,
) -> None:
    """Put a flood into the first partitions."""
    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.kbytes": 262_144})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, key, number % partitions, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()
    producer.close()


def send_quiet(servers: str, topic: str, partition: int, waits: Waits, seconds: float) -> None:
    """Send a record to the quiet partition every 50 ms."""
    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
    for number in range(int(seconds / EVERY)):
        producer.produce(
            topic,
            b"quiet",
            str(number).encode(),
            partition,
            on_delivery=partial(waits.acknowledge, number),
        )
        until = time.monotonic() + EVERY
        while (left := until - time.monotonic()) > 0:
            producer.poll(left)
    producer.flush()
    producer.close()


def send_of_tenants(servers: str, topic: str, partitions: int, waits: Waits, seconds: float) -> None:
    """Send a record a second of each other tenant, to all partitions."""
    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
    began = time.monotonic()
    for number in range(int(seconds * OTHERS)):
        while (left := began + number / OTHERS - time.monotonic()) > 0:
            producer.poll(left)
        producer.produce(
            topic,
            b"quiet",
            str(number).encode(),
            number % partitions,
            headers={"tenant": f"tenant {number % OTHERS}"},
            on_delivery=partial(waits.acknowledge, number),
        )
    producer.flush()
    producer.close()


@contextmanager
def parallel(
    servers: str,
    topics: list[str],
    waits: Waits,
    is_async: bool,
    flood: int = 500,
    takes: Callable[[], float] = lambda: HANDLER,
    **options: Any,
) -> Iterator[None]:
    """Handle the topics while the block runs, which begins when so many records of the flood have started."""

    def handle(record: ConsumerRecord) -> None:
        waits.start(record)
        time.sleep(takes())

    async def handle_async(record: ConsumerRecord) -> None:
        waits.start(record)
        await asyncio.sleep(takes())

    config = {"bootstrap.servers": servers, "group.id": topics[0], "auto.offset.reset": "earliest"}
    with ParallelConsumer(config, max_concurrency=SLOTS, ordering=Ordering.UNORDERED, **options) as consumer:
        consumer.subscribe(topics)
        running = threading.Thread(target=consumer.run, args=(handle_async if is_async else handle,))
        running.start()
        try:
            _await_flood(waits, flood)
            yield
        finally:
            consumer.stop(drain=False)
            running.join()


@contextmanager
def polling(servers: str, topics: list[str], waits: Waits) -> Iterator[None]:
    """Poll the topics while the block runs; each poll of 50 records takes as long as a round of the slots."""
    ended = threading.Event()
    config = {
        "bootstrap.servers": servers,
        "group.id": topics[0],
        "auto.offset.reset": "earliest",
        "levels": 1,
        "max.poll.records": SLOTS,
    }

    def poll() -> None:
        with PriorityConsumer(config) as consumer:
            consumer.subscribe(dict.fromkeys(topics, 0))
            while not ended.is_set():
                for record in consumer.poll(0.1):
                    waits.start(record)
                ended.wait(HANDLER)

    running = threading.Thread(target=poll)
    running.start()
    try:
        _await_flood(waits)
        yield
    finally:
        ended.set()
        running.join()


def _await_flood(waits: Waits, flood: int = 500) -> None:
    until = time.monotonic() + 60
    while waits.of_flood < flood and time.monotonic() < until:
        time.sleep(0.01)


def healthy_beside_failing(servers: str, topic: str) -> float:
    """Return the seconds until 200 healthy records are done, beside 200 keys that always fail; 8 slots of 50 ms."""
    done, all_done = 0, threading.Event()
    counted = threading.Lock()

    def handle(record: ConsumerRecord) -> None:
        nonlocal done
        time.sleep(0.05)
        if str(record.raw_key).startswith("b'bad"):
            raise ValueError
        with counted:
            done += 1
            if done == 200:
                all_done.set()

    producer = ck.Producer({"bootstrap.servers": servers})
    for kind in ("bad", "good"):
        for number in range(200):
            producer.produce(topic, b"", f"{kind}-{number}", partition=0)
        producer.flush()
    producer.close()
    config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    with ParallelConsumer(config, max_concurrency=8, retries=Retries(fixed_backoff(0.25))) as consumer:
        consumer.subscribe([topic])
        began = time.monotonic()
        running = threading.Thread(target=consumer.run, args=(handle,))
        running.start()
        all_done.wait(60)
        took = time.monotonic() - began
        consumer.stop()
        running.join()
    return took


def measure(report: Report, options: Options) -> None:
    """Each kind of flood, by threads, an event loop and polls; then failing records."""
    seconds = 4.0 if options.quick else 15.0
    with options.broker() as servers:
        admin = AdminClient({"bootstrap.servers": servers})

        def made(partitions: int) -> str:
            name = f"fairness-{uuid.uuid4().hex[:8]}"
            admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
            return name

        for flooded in (1, 10) if options.quick else (1, 10, 300):
            for system in ("threads", "async", "poll"):
                topic = made(flooded + 1)
                fill(servers, topic, flooded, int(seconds * 1.5 * SLOTS / HANDLER))
                _beside(report, servers, [topic], flooded, system, seconds, f"{flooded} flooded partitions")
        flood, quiet = made(10), made(1)
        fill(servers, flood, 10, int(seconds * 1.5 * SLOTS / HANDLER))
        _beside(report, servers, [flood, quiet], 0, "threads", seconds, "another topic of 10 flooded partitions")
        by_tenant(report, servers, made, seconds)
        took = healthy_beside_failing(servers, made(1))
        report.add("200 healthy beside 200 failing records", "threads", took, "s")
        # Alone they take 1.25 s of 8 slots; with a quarter of the slots for retries 1.7 s.
        report.at_most("healthy beside failing records, s", took, 3.5)


def by_tenant(report: Report, servers: str, made: Callable[[int], str], seconds: float) -> None:
    """A flood by tenant and one by key, on threads and on an event loop, beside what the others wait alone."""
    partitions = 4
    for is_async in (False, True):
        executor = "async" if is_async else "threads"
        alone = _others_wait(servers, made(partitions), partitions, is_async, seconds, SLOTS, tenant="key")
        report.add("99 tenants alone", f"{executor}: p50", percentile(alone, 50), "ms")
        report.add("99 tenants alone", f"{executor}: p99", percentile(alone, 99), "ms")
        for case, tenant in (("flood by tenant", "header:tenant"), ("flood by key", "key"), ("no tenants", None)):
            took = _others_wait(servers, made(partitions), partitions, is_async, seconds, FLOOD_OF_TENANT, tenant)
            report.add(case, f"{executor}: p50", percentile(took, 50), "ms")
            report.add(case, f"{executor}: p99", percentile(took, 99), "ms")
            if tenant:
                bound = max(2 * percentile(alone, 99), HANDLER * 1000)
                report.at_most(f"{case}, {executor}: p99 of the wait, ms", percentile(took, 99), bound)


def _varied() -> float:
    return HANDLER * random.uniform(0.5, 1.5)


def _others_wait(
    servers: str, topic: str, partitions: int, is_async: bool, seconds: float, flood: int, tenant: str | None
) -> list[float]:
    waits = Waits()
    fill(servers, topic, partitions, flood, b"", HOT, {"tenant": "flood"})
    # All of the flood is fetched by then. Its handlers vary, as they would else all end at the same moment.
    with parallel(servers, [topic], waits, is_async, flood // 5, _varied, tenant=tenant):
        send_of_tenants(servers, topic, partitions, waits, seconds)
        time.sleep(0.5)
        return waits.in_ms()


def _beside(
    report: Report, servers: str, topics: list[str], partition: int, system: str, seconds: float, case: str
) -> None:
    waits = Waits()
    context: Any = (
        polling(servers, topics, waits) if system == "poll" else parallel(servers, topics, waits, system == "async")
    )
    with context:
        send_quiet(servers, topics[-1], partition, waits, seconds)
        time.sleep(0.5)
    report.add(case, f"{system}: longest of the first second", max(waits.in_ms(until=READ_IN)), "ms")
    took = waits.in_ms(READ_IN)
    report.add(case, f"{system}: p50", percentile(took, 50), "ms")
    report.add(case, f"{system}: p99", percentile(took, 99), "ms")
    report.at_most(f"{case}, {system}: p99 of the wait, ms", percentile(took, 99), BOUND_MS)


if __name__ == "__main__":
    main(QUESTION, measure)
