"""The hot paths and the least that a peer takes for the same, each as a program of its own.

`python _peer_paths.py PATH ADDRESS TOPIC COUNT LOOP` prints µs of CPU a record, and records a second. LOOP is `uvloop`
or `asyncio`. The paths of Headway are those of `_speed_paths.py`.
"""

import asyncio
import gc
import importlib
import itertools
import sys
from collections import deque
from collections.abc import Sequence

import confluent_kafka as ck
from _cpu_clock import Cost, CpuClock
from _speed_paths import IN_FLIGHT, PATHS, SLOTS, Measure, consumer_config

from headway import Producer
from headway.kafka.producer.delivery import DeliveryFuture

SETTINGS = {"linger.ms": 5, "partitioner": "murmur2_random", "enable.idempotence": True}
VALUE = b"x" * 100
TAKEN = 500  # records of one call of `consume`


def bare_tasks(address: str, topic: str, count: int) -> Cost:
    """A task for each record that sleeps for 10 ms, 1,000 at a time, without Kafka."""
    clock, begun, done = CpuClock(count), itertools.count(1), itertools.count(1)

    async def serve_all() -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        async def serve() -> None:
            await asyncio.sleep(0.01)
            if clock.see(next(done)):
                over.set_result(None)
            begin()

        def begin() -> None:
            if next(begun) <= count:
                loop.create_task(serve())  # noqa: RUF006 - the timer for which it waits refers to it

        for _ in range(SLOTS):
            begin()
        await over

    with asyncio.Runner(loop_factory=_bare_loop) as runner:
        runner.run(serve_all())
    return clock.cost


def _bare_loop() -> asyncio.AbstractEventLoop:
    """asyncio's own, or uvloop's where that is measured."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def plain_consume(address: str, topic: str, count: int) -> Cost:
    """confluent-kafka's `consume`, of the topic in which the records of the lowest level are."""
    clock, read = CpuClock(count), 0
    consumer = ck.Consumer(consumer_config(address))
    consumer.subscribe([f"{topic}-0"])
    while read < count:
        messages = consumer.consume(min(TAKEN, count - read), 1)  # it waits until it has as many
        for message in messages:
            assert message.error() is None
            message.value()
        read += len(messages)
        clock.see(read)
    consumer.close()
    return clock.cost


def plain_produce(levels: Sequence[str]) -> Measure:
    """`produce` with a callback, to several topics in turn."""

    def measure(address: str, topic: str, count: int) -> Cost:
        clock, delivered = CpuClock(count), 0

        def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
            nonlocal delivered
            assert error is None
            delivered += 1

        topics = [topic + level for level in levels]
        producer = ck.Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000, **SETTINGS})
        producer.produce(topics[0], b"first", on_delivery=on_delivery)
        producer.flush()
        for number in range(1, count):
            producer.produce(topics[number % len(topics)], VALUE, str(number), on_delivery=on_delivery)
            if number % 100 == 0:
                producer.poll(0)
            clock.see(number)
        producer.flush()
        assert delivered == count
        clock.see(count)
        return clock.cost

    return measure


def produce(address: str, topic: str, count: int) -> Cost:
    """Headway's `send` to one topic without levels, each future looked at."""
    clock, futures = CpuClock(count), deque[DeliveryFuture]()
    with Producer({"bootstrap.servers": address, **SETTINGS}) as producer:
        producer.send(topic, b"first").result()
        for number in range(1, count):
            futures.append(producer.send(topic, VALUE, str(number)))
            if len(futures) == IN_FLIGHT:
                assert futures.popleft().exception() is None
            clock.see(number)
        producer.flush()
        clock.see(count)
    return clock.cost


HERE: dict[str, Measure] = {
    "bare tasks, 10 ms": bare_tasks,
    "plain consume": plain_consume,
    "plain produce, one topic": plain_produce([""]),
    "plain produce, three topics": plain_produce(["-0", "-1", "-2"]),
    "producer, send, no levels": produce,
}


if __name__ == "__main__":
    _, path, at, of, number, chosen = sys.argv
    if chosen == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]  # as where it is not installed
    else:
        importlib.import_module(chosen)  # otherwise asyncio's would be measured instead
    gc.freeze()  # as a worker does
    print(*(HERE[path] if path in HERE else PATHS[path][1])(at, of, int(number)))
