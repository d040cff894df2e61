"""How long does a call take, beside the time until its record is delivered? How many can be under way?

A member in the same process answers each call with the record's value. Calls are made one at a time, then all at once.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from _harness import Options, Report, main, percentile

from headway import AsyncProducer, ConsumerRecord, ParallelConsumer, create_topic
from headway.calls import AsyncCalls

QUESTION = "How long does a call take?"
TOPIC, RESULTS = "calls", "calls-results"


async def answer(record: ConsumerRecord) -> str:
    """What a handler does that has nothing to do."""
    return (record.raw_value or b"").decode()


@contextmanager
def answering(servers: str) -> Iterator[None]:
    """A member that answers calls, in a thread of its own."""
    config = {"bootstrap.servers": servers, "group.id": "answers", "auto.offset.reset": "earliest"}
    with ParallelConsumer(config, ordering="key_if_any", max_concurrency=1000, result_topic=RESULTS) as consumer:
        consumer.subscribe(TOPIC)
        thread = threading.Thread(target=consumer.run, args=(answer,))
        thread.start()
        try:
            yield
        finally:
            consumer.stop()
            thread.join()


async def timed(servers: str, one_by_one: int, together: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of single sends and of single calls, and how many calls a second were answered together."""
    config = {"bootstrap.servers": servers}
    async with AsyncProducer(config) as producer, AsyncCalls(config, RESULTS) as calls:
        await calls.call(producer, TOPIC, "the member has started")
        sends, round_trips = [], []
        for number in range(one_by_one):
            began = time.perf_counter()
            await producer.send(TOPIC, str(number))
            sent = time.perf_counter()
            await calls.call(producer, TOPIC, str(number))
            sends.append((sent - began) * 1000)
            round_trips.append((time.perf_counter() - sent) * 1000)
        began = time.perf_counter()
        await asyncio.gather(*(calls.call(producer, TOPIC, str(number)) for number in range(together)))
        return sends, round_trips, together / (time.perf_counter() - began)


def measure(report: Report, options: Options) -> None:
    """Single calls, and calls that are all under way at once."""
    one_by_one, together = (50, 2_000) if options.quick else (500, 50_000)
    with options.broker() as servers:
        create_topic({"bootstrap.servers": servers}, TOPIC, partitions=4)
        with answering(servers):
            sends, round_trips, rate = asyncio.run(timed(servers, one_by_one, together))
    for percent in (50, 99):
        report.add(f"one at a time, p{percent}", "send", percentile(sends, percent), "ms")
        report.add(f"one at a time, p{percent}", "call", percentile(round_trips, percent), "ms")
    report.add(f"{together:,} at once", "call", rate, "calls/s")


if __name__ == "__main__":
    main(QUESTION, measure)
