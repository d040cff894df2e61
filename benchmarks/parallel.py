"""How many records a second does one parallel consumer handle, against the bound in flight ÷ time?

Handlers that take a fixed time, on threads and on an event loop, from the first to the last record of a topic; with
handlers that take no time there is no bound, and what counts is the cost of a record.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ConsumerRecord, Context, Ordering, ParallelConsumer

QUESTION = "How many records a second does one parallel consumer handle, against the bound in flight ÷ time?"
PARTITIONS = 4
KEYS = 10_000
AIMS = {("async", 1000, 10): 60_000, ("threads", 1000, 10): 50_000, ("async", 1000, 0): 100_000}


def measure(report: Report, options: Options) -> None:
    """Each number in flight with each time, by key."""
    count = 20_000 if options.quick else 100_000
    with options.broker() as servers:
        topic = _filled_topic(servers, count)
        for executor in ("threads", "async"):
            for in_flight in (100, 1000):
                for milliseconds in (0, 1, 10):
                    rate = _rate(servers, topic, count, executor, in_flight, milliseconds / 1000)
                    _note(report, executor, in_flight, milliseconds, rate)
        admin = AdminClient({"bootstrap.servers": servers})
        admin.delete_topics([topic])[topic].result()


def _note(report: Report, executor: str, in_flight: int, milliseconds: int, rate: float) -> None:
    case = f"{milliseconds} ms, {in_flight} in flight"
    report.add(case, executor, rate, "records/s")
    if milliseconds:
        bound = in_flight / milliseconds * 1000
        report.add(case, executor, rate / bound, "of the bound")
        if bound <= 10_000:
            report.at_least(f"{case}, {executor}: part of the bound", rate / bound, 0.95)
    if aim := AIMS.get((executor, in_flight, milliseconds)):
        report.at_least(f"{case}, {executor}: records/s", rate, aim)


def _filled_topic(servers: str, count: int) -> str:
    topic = f"parallel-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for i in range(count):
        producer.produce(topic, b"x" * 100, str(i % KEYS))
    producer.flush()
    producer.close()
    return topic


def _rate(servers: str, topic: str, count: int, executor: str, in_flight: int, seconds: float) -> float:
    config = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    with ParallelConsumer(config, ordering=Ordering.KEY, max_concurrency=in_flight) as consumer:
        consumer.subscribe(topic)
        started: list[float] = []
        ended: list[float] = []

        def end() -> None:
            ended.append(time.perf_counter())
            if len(ended) == count:
                consumer.stop()

        consumer.run(_handler(executor, seconds, started, end))
    return count / (ended[-1] - started[0])


def _handler(executor: str, seconds: float, started: list[float], end: Callable[[], None]) -> Callable[..., Any]:
    def handle(record: ConsumerRecord, context: Context) -> None:
        started.append(time.perf_counter())
        if seconds:
            time.sleep(seconds)
        end()

    async def handle_async(record: ConsumerRecord, context: Context) -> None:
        started.append(time.perf_counter())
        if seconds:
            await asyncio.sleep(seconds)
        end()

    return handle if executor == "threads" else handle_async


if __name__ == "__main__":
    main(QUESTION, measure)
