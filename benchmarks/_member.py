"""Reads a topic as the only member of a group: `_member.py KIND ADDRESS TOPIC COUNT PER_SECOND [NAME=VALUE ...]`.

KIND is poll, threads, loop or plain, which is confluent-kafka without Headway. The program prints the CPU time per
record in microseconds, and the largest memory of the process in MB. The program is a process of its own, so that both
figures concern the consumer alone. The CPU time includes librdkafka's threads. The consumer takes at most PER_SECOND
records per second; 0 means no limit. The last arguments are settings of the consumer.
"""

import asyncio
import itertools
import sys
import time
import uuid

import confluent_kafka as ck
import psutil
from _cpu_clock import CpuClock

from headway import ConsumerRecord, Ordering, ParallelConsumer, PriorityConsumer

SLOTS = 50
LOOK_EVERY = 500  # records between two measurements of the memory
# The fraction of the records whose CPU time is not counted. It includes the start of the member, and with thousands of
# partitions also the time in which librdkafka begins to read them.
WARM_UP = 0.5


class Meter(CpuClock):
    """Measures the CPU time between the end of the warm-up and the last record, and the memory of the process."""

    def __init__(self, count: int) -> None:
        super().__init__(count, WARM_UP)
        self._process = psutil.Process()
        self._look_at = 0
        self.megabytes = 0.0

    def see(self, number: int) -> bool:
        """Note that `number` records were handled, and return whether these are all records."""
        if number >= self._look_at:
            self._look_at = number + LOOK_EVERY
            self.megabytes = max(self.megabytes, self._process.memory_info().rss / 2**20)
        return super().see(number)


def poll(config: dict[str, object], topic: str, count: int, per_second: float) -> Meter:
    """Poll all records with one level."""
    meter, read = Meter(count), 0
    with PriorityConsumer({**config, "levels": 1, "max.poll.records": SLOTS if per_second else 500}) as consumer:
        consumer.subscribe({topic: 0})
        while read < count:
            records = consumer.poll(0.1)
            read += len(records)
            meter.see(read)
            if per_second:
                time.sleep(len(records) / per_second)
    return meter


def plain(config: dict[str, object], topic: str, count: int) -> Meter:
    """Consume all records with confluent-kafka alone."""
    meter, read = Meter(count), 0
    consumer = ck.Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    while read < count:
        read += len(consumer.consume(500, 0.1))
        meter.see(read)
    consumer.close()
    return meter


def parallel(kind: str, config: dict[str, object], topic: str, count: int, per_second: float) -> Meter:
    """Handle all records, on threads or on an event loop."""
    meter, numbers = Meter(count), itertools.count(1)
    pause = SLOTS / per_second if per_second else 0.0
    consumer = ParallelConsumer(config, ordering=Ordering.UNORDERED, max_concurrency=SLOTS)
    consumer.subscribe(topic)

    def in_a_thread(_: ConsumerRecord) -> None:
        if pause:
            time.sleep(pause)
        if meter.see(next(numbers)):
            consumer.stop(drain=False)

    async def on_the_loop(_: ConsumerRecord) -> None:
        if pause:
            await asyncio.sleep(pause)
        if meter.see(next(numbers)):
            consumer.stop(drain=False)

    consumer.run(on_the_loop if kind == "loop" else in_a_thread)
    return meter


def main() -> None:
    """Read the topic, and print both figures."""
    kind, address, topic, count, per_second, *settings = sys.argv[1:]
    config: dict[str, object] = {
        "bootstrap.servers": address,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        **dict(setting.split("=", 1) for setting in settings),
    }
    if kind == "plain":
        meter = plain(config, topic, int(count))
    elif kind == "poll":
        meter = poll(config, topic, int(count), float(per_second))
    else:
        meter = parallel(kind, config, topic, int(count), float(per_second))
    print(meter.cost.microseconds, meter.megabytes)


if __name__ == "__main__":
    main()
