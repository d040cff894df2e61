"""The hot paths, each as a program: `python _speed_paths.py PATH ADDRESS TOPIC COUNT`.

A program prints µs of CPU a record, and records a second. `speed.py` runs them on two trees in turns, by PYTHONPATH.
So they use public names only, and the few that the reference commit has under another name are found at the top.
"""

import asyncio
import gc
import itertools
import os
import statistics
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from _cpu_clock import Cost, CpuClock, cpu_of_all

import headway
from headway import ConsumerRecord, Context, Ordering, ParallelConsumer, PriorityConsumer, Relay, Scheduler

IS_REFERENCE = hasattr(headway, "exponential")  # it became `exponential_shares`
LEVELS = "max.priority" if IS_REFERENCE else "levels"
MAX_CONCURRENCY = "concurrency" if IS_REFERENCE else "max_concurrency"
MEASURES = "HEADWAY_SPEED_MEASURES" in os.environ  # set by `speed.py --measured` for one of the two trees
SLOTS = 1000
IN_FLIGHT = 20_000
PATIENCE = 120  # seconds
SPARK_WARM_UPS = 2  # the JVM compiles what is hot
SPARK_RUNS = 3  # it goes on with that now and then, so that a single run says little

Measure = Callable[[str, str, int], Cost]
"""(address, topic, count) -> what a record cost."""


def consumer_config(address: str) -> dict[str, Any]:
    """Settings of a group that reads everything."""
    return {"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}


def begin_to_measure(client: Any) -> None:
    """Measure a client, if `speed.py --measured` asks for it."""
    if MEASURES:
        client.measure()


def parallel(executor: str, milliseconds: int, ordering: Ordering) -> Measure:
    """A parallel consumer with 1,000 slots, of which each record takes one for so long."""
    seconds = milliseconds / 1000

    def measure(address: str, topic: str, count: int) -> Cost:
        clock, numbers = CpuClock(count), itertools.count(1)
        consumer = ParallelConsumer(consumer_config(address), ordering=ordering, max_concurrency=SLOTS)
        begin_to_measure(consumer)
        consumer.subscribe(topic)

        def in_a_thread(record: ConsumerRecord, context: Context) -> None:
            if seconds:
                time.sleep(seconds)
            if clock.see(next(numbers)):
                consumer.stop()

        async def on_the_loop(record: ConsumerRecord, context: Context) -> None:
            if seconds:
                await asyncio.sleep(seconds)
            if clock.see(next(numbers)):
                consumer.stop()

        consumer.run(on_the_loop if executor == "loop" else in_a_thread)
        return clock.cost

    return measure


def poll(address: str, topic: str, count: int) -> Cost:
    """`PriorityConsumer.poll` with three levels, of which the records are in the lowest."""
    clock, read = CpuClock(count), 0
    with PriorityConsumer({**consumer_config(address), LEVELS: 3, "max.poll.records": 500}) as consumer:
        begin_to_measure(consumer)
        consumer.subscribe(topic)
        while read < count:
            for record in consumer.poll(1):
                record.value  # noqa: B018 - reading it is what is measured
                read += 1
                clock.see(read)
    return clock.cost


def iteration(address: str, topic: str, count: int) -> Cost:
    """The same by iteration."""
    clock = CpuClock(count)
    with PriorityConsumer({**consumer_config(address), LEVELS: 3, "max.poll.records": 500}) as consumer:
        begin_to_measure(consumer)
        consumer.subscribe(topic)
        for read, record in enumerate(consumer, 1):
            record.value  # noqa: B018 - as above
            if clock.see(read):
                break
    return clock.cost


def produce(address: str, topic: str, count: int) -> Cost:
    """`send` with a key to three levels, each future looked at."""
    name = "PriorityProducer" if hasattr(headway, "PriorityProducer") else "Producer"
    clock, futures = CpuClock(count), deque[Any]()
    level = "priority" if IS_REFERENCE else "level"
    tops = [{level: number} for number in range(3)]
    with getattr(headway, name)({"bootstrap.servers": address, LEVELS: 3, "linger.ms": 5}) as producer:
        begin_to_measure(producer)
        producer.send(topic, b"first", **tops[2]).result()
        value = b"x" * 100
        for number in range(1, count):
            futures.append(producer.send(topic, value, str(number), **tops[number % 3]))
            if len(futures) == IN_FLIGHT:
                assert futures.popleft().exception() is None
            clock.see(number)
        producer.flush()
        clock.see(count)
    return clock.cost


def relay(mode: Any) -> Measure:
    """A relay that delivers records that are all due, until the last is stored."""

    def measure(address: str, topic: str, count: int) -> Cost:
        from headway.delay.topics import create_topics  # noqa: PLC0415 - the others need not import it

        settings, name = {"bootstrap.servers": address}, f"speed-{uuid.uuid4().hex[:8]}"
        create_topics(settings, name, None, 1)
        with Scheduler({**settings, "linger.ms": 5}, name=name) as scheduler:
            for number in range(count):
                scheduler.send_later(b"%d" % number, b"x" * 100, topic, 0)
        clock = CpuClock(count)
        delivering = Relay(settings, name=name, mode=mode)
        begin_to_measure(delivering)
        with delivering.running():
            _see_stored(address, topic, clock)
        return clock.cost

    return measure


def _see_stored(address: str, topic: str, clock: CpuClock) -> None:
    """Let a clock see how many records a topic has, until it has them all."""
    import confluent_kafka as ck  # noqa: PLC0415 - the others need not import it

    consumer = ck.Consumer({"bootstrap.servers": address, "group.id": "speed"})
    deadline = time.monotonic() + PATIENCE
    while not clock.see(consumer.get_watermark_offsets(ck.TopicPartition(topic, 0), 10)[1]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    consumer.close()


def spark(path: str) -> Measure:
    """Spark's source, sink or stage: CPU of the driver, the JVM and the Python workers, in a session that is warm."""

    def measure(address: str, topic: str, count: int) -> Cost:
        from headway.spark import local_session, parallel_map  # noqa: PLC0415 - needs PySpark

        session = local_session("headway speed", {})

        def source() -> None:
            options = {"kafka.bootstrap.servers": address, "subscribe": topic, "levels": "1"}
            rows = session.readStream.format("headway").options(**options, startingOffsets="earliest").load()
            query = rows.where("length(value) = 100").writeStream.format("noop").trigger(availableNow=True).start()
            assert query.awaitTermination(PATIENCE)

        def sink() -> None:
            rows = session.range(0, count, 1, 2).selectExpr(
                f"'{topic}' AS topic", "CAST(id AS STRING) AS key", "repeat('x', 100) AS value"
            )
            rows.write.format("headway").mode("append").option("kafka.bootstrap.servers", address).save()

        async def call(row: Any, context: Any) -> int:
            return int(row.id)

        def stage() -> None:
            rows = session.range(0, count, 1, 2)
            slots: Any = {MAX_CONCURRENCY: SLOTS}
            outcomes = parallel_map(rows, call, "int", key="id", **slots)
            outcomes.selectExpr("result").write.format("noop").mode("append").save()

        run = {"source": source, "sink": sink, "stage": stage}[path]

        def once() -> Cost:
            began, at = cpu_of_all(), time.perf_counter()
            run()
            return Cost((cpu_of_all() - began) / count * 1e6, count / (time.perf_counter() - at))

        try:
            for _ in range(SPARK_WARM_UPS):
                run()
            return statistics.median_low(once() for _ in range(SPARK_RUNS))
        finally:
            session.stop()

    return measure


PATHS: dict[str, tuple[int, Measure]] = {
    "parallel, loop, 0 ms, by key": (200_000, parallel("loop", 0, Ordering.KEY)),
    "parallel, loop, 0 ms, unordered": (200_000, parallel("loop", 0, Ordering.UNORDERED)),
    "parallel, loop, 1 ms, by key": (200_000, parallel("loop", 1, Ordering.KEY)),
    "parallel, loop, 1 ms, unordered": (200_000, parallel("loop", 1, Ordering.UNORDERED)),
    "parallel, loop, 10 ms, by key": (200_000, parallel("loop", 10, Ordering.KEY)),
    "parallel, loop, 10 ms, unordered": (200_000, parallel("loop", 10, Ordering.UNORDERED)),
    "parallel, threads, 0 ms, by key": (100_000, parallel("threads", 0, Ordering.KEY)),
    "parallel, threads, 0 ms, unordered": (100_000, parallel("threads", 0, Ordering.UNORDERED)),
    "parallel, threads, 10 ms, by key": (50_000, parallel("threads", 10, Ordering.KEY)),
    "parallel, threads, 10 ms, unordered": (50_000, parallel("threads", 10, Ordering.UNORDERED)),
    "consumer, poll": (200_000, poll),
    "consumer, iteration": (200_000, iteration),
    "producer, send": (200_000, produce),
    "relay, low-latency": (100_000, relay("low-latency")),
    "relay, exactly-once": (100_000, relay("exactly-once")),
    "spark, source": (200_000, spark("source")),
    "spark, sink": (100_000, spark("sink")),
    "spark, stage": (50_000, spark("stage")),
}
"""name -> (records, how to measure)"""


if __name__ == "__main__":
    _, path, at, of, number = sys.argv
    gc.freeze()  # as a worker does
    print(*PATHS[path][1](at, of, int(number)))
