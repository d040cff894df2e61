"""What does the accumulator cost a record, from put over drain to report, beside the least that any queue does?

Records are put in bursts, drained, and reported at once. The baseline puts the same records through one deque.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from _harness import Options, Report, main

from headway.core.producer.accumulator import Accumulator
from headway.core.producer.queues import Queue
from headway.core.producer.turn_policies import FairTurns

QUESTION = "What does the producer's accumulator cost a record?"
BURST = 500
RECORD_BYTES = 612  # 100 bytes, and what goes with them
BITE = 512 * 1024


@dataclass(eq=False, slots=True)
class Record:
    """What the accumulator asks of a record."""

    size: int
    since: float
    queue: Any = field(default=None, repr=False)


def baseline(count: int) -> float:
    """Seconds a record through a deque."""
    records = [Record(RECORD_BYTES, 0.0) for _ in range(count)]
    started = time.perf_counter()
    for start in range(0, count, BURST):
        queue: deque[Record] = deque()
        for record in records[start : start + BURST]:
            queue.append(record)
        while queue:
            queue.popleft()
    return (time.perf_counter() - started) / count


def run(count: int, levels: int, partitions: int, burst: int, *, designated: bool) -> float:
    """Seconds a record, for records that go over all levels and partitions in turn, or to any partition."""
    accumulator: Accumulator[Record] = Accumulator(levels, FairTurns([2**level for level in range(levels)]))
    queues: list[Queue[Record]] = []
    for level in range(levels):
        topic = accumulator.topic(f"orders-{level}", level)
        accumulator.learn(topic, partitions, range(partitions))
        queues += [topic.queue(number) for number in range(partitions)] if designated else [topic.undesignated]
    records = [Record(RECORD_BYTES, 0.0) for _ in range(count)]
    started = time.perf_counter()
    for start in range(0, count, burst):
        for index, record in enumerate(records[start : start + burst]):
            assert accumulator.put(queues[index % len(queues)], record)
        while batches := accumulator.drain(BITE, 0.0):
            for batch in batches:
                for record in batch.records:
                    if not batch.queue.returned:
                        batch.queue.reported.append(batch.queue)
                    batch.queue.returned += record.size
            accumulator.settle(0.0)
    cost = (time.perf_counter() - started) / count
    assert accumulator.used == 0
    return cost


def measure(report: Report, options: Options) -> None:
    """Each shape a few times; the quickest counts."""
    count, rounds = (60_000, 3) if options.quick else (300_000, 5)
    plain = min(baseline(count) for _ in range(rounds)) * 1e6
    report.add("put and take", "a deque", plain, "µs a record")
    for levels, partitions, designated in ((1, 1, True), (1, 12, True), (3, 12, True), (1, 125, False), (3, 12, False)):
        cost = min(run(count, levels, partitions, BURST, designated=designated) for _ in range(rounds)) * 1e6
        keyed = "each its partition" if designated else "any partition"
        case = f"{levels} levels, {partitions} partitions, {keyed}, bursts of {BURST}"
        report.add(case, "accumulator", cost, "µs a record")
        report.at_most(f"µs a record, {case}", cost, 2)
    small = min(run(count, 3, 12, 10, designated=True) for _ in range(rounds)) * 1e6
    report.add("3 levels, 12 partitions, bursts of 10: batches of one record", "accumulator", small, "µs a record")


if __name__ == "__main__":
    main(QUESTION, measure)
