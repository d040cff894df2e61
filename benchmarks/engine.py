"""What does the engine cost a record, from receive to commit, beside the least that any program does?

Records are received in fetches of 500, taken in batches, finished at once, and committed every 10,000. The baseline
puts the same records through a deque and a set of offsets: no order, no levels, no retries, no map.
"""

import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from _harness import Options, Report, main

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition

QUESTION = "What does the engine cost a record, from receive to commit?"
FETCH = 500
COMMIT_EVERY = 10_000
KEYS = 10_000
STUCK = 40


@dataclass(slots=True)
class Record:
    """What the engine asks of a record."""

    offset: int
    raw_key: bytes


def log_of(count: int, keys: int, seed: int = 4) -> list[Record]:
    names = [f"key {number}".encode() for number in range(keys)]
    draw = random.Random(seed)
    return [Record(offset, draw.choice(names)) for offset in range(count)]


def fetches(log: list[Record]) -> Iterator[list[Record]]:
    return (log[start : start + FETCH] for start in range(0, len(log), FETCH))


def baseline(log: list[Record]) -> float:
    started = time.perf_counter()
    incomplete: set[int] = set()
    for fetched in fetches(log):
        queue = deque(fetched)
        incomplete.update(record.offset for record in fetched)
        while queue:
            incomplete.discard(queue.popleft().offset)
    return (time.perf_counter() - started) / len(log)


def run(logs: list[list[Record]], ordering: Ordering, batch: int, stuck: frozenset[bytes] = frozenset()) -> float:
    """Seconds per record for one log per level."""
    engine: Engine[Record] = Engine(ordering, levels=len(logs))
    partitions = [TopicPartition("orders", partition=0, level=level) for level in range(len(logs))]
    for partition in partitions:
        engine.assign(partition, OffsetMap(0))
    started = time.perf_counter()
    finished = 0
    for fetched in zip(*map(fetches, logs), strict=True):
        for partition, records in zip(partitions, fetched, strict=True):
            engine.receive(partition, records, 0.0)
        engine.paused()
        engine.demand()
        while attempts := engine.take(batch, 0.0):
            for attempt in attempts:
                if attempt.record.raw_key not in stuck:
                    engine.finish(attempt, 0.0)
        finished += FETCH * len(logs)
        if finished >= COMMIT_EVERY:
            engine.committed(engine.tick())
            finished = 0
    engine.committed(engine.tick())
    return (time.perf_counter() - started) / sum(map(len, logs))


def reach(keys: int, record_bytes: int) -> int:
    """How many records of one partition are done, all at the given keys, before its 40 stuck lanes hold it."""
    engine: Engine[Record] = Engine(Ordering.KEY, size_of=lambda record: record_bytes)
    partition = TopicPartition("orders", partition=0)
    engine.assign(partition, OffsetMap(0))
    stuck = frozenset(f"key {number}".encode() for number in range(STUCK))
    done = 0
    for records in fetches(log_of(400_000, keys)):
        engine.receive(partition, records, 0.0)
        while attempts := engine.take(FETCH, 0.0):
            done += sum(engine.finish(attempt, 0.0) for attempt in attempts if attempt.record.raw_key not in stuck)
        if engine.paused():
            break
    return done


def measure(report: Report, options: Options) -> None:
    total, rounds = (60_000, 2) if options.quick else (300_000, 5)
    logs = {levels: [log_of(total // levels, KEYS, seed) for seed in range(levels)] for levels in (1, 3)}
    worst = 0.0
    plain = min(baseline(logs[1][0]) for _ in range(rounds))
    report.add("receive, take, finish, commit", "a deque and a set", plain * 1e6, "µs a record")
    for levels, of_levels in logs.items():
        for ordering in Ordering:
            for batch in (1, 16, 500):
                cost = min(run(of_levels, ordering, batch) for _ in range(rounds)) * 1e6
                worst = max(worst, cost)
                report.add(f"{levels} levels, takes of {batch}", ordering.value, cost, "µs a record")
    stuck = frozenset(f"key {number}".encode() for number in range(STUCK))
    cost = min(run(logs[1], Ordering.KEY, 16, stuck) for _ in range(rounds)) * 1e6
    report.add(f"{STUCK} of {KEYS:,} lanes stuck, takes of 16", "key", cost, "µs a record")
    for keys in (160, 400, 4_000):
        for size in (1_500, 100_000):
            report.add(f"{STUCK} of {keys:,} keys stuck, {size:,} B", "key", reach(keys, size), "done until held")
    report.at_most("µs a record, slowest", worst, 4)
    report.at_most(f"µs a record with {STUCK} lanes stuck", cost, 4)


if __name__ == "__main__":
    main(QUESTION, measure)
