"""How does the CPU time per record grow with keys, partitions, tenants, levels and records in flight?

The engine, the policies, the fetch buffer and the accumulator are measured without Kafka. For members with many
partitions, a process of its own reads a topic from a broker (`_member.py`), and also reports its memory. The CPU time
of a member is measured after its start. Between two sizes, the CPU time per record may grow by at most
log(1 + larger) / log(1 + smaller), which is the growth of a binary search. A member may also grow as much as
confluent-kafka alone. Levels are compared with one level, which needs no policy. The sizes of a row take turns, and the
smallest figure of each size counts.
"""

import gc
import random
import subprocess
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from math import log
from pathlib import Path
from typing import Any

from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from fairness import fill
from matplotlib.figure import Figure

from headway.core.engine.assignment import Assignment
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import make_slots
from headway.core.levels.fetch_buffer import FetchBuffer
from headway.core.levels.level_buffer import LevelBuffer
from headway.core.levels.policies import PolicyName, make_policy
from headway.core.offsets.offset_map import OffsetMap
from headway.core.producer.accumulator import Accumulator, Limits
from headway.core.producer.queues import Queue
from headway.core.producer.turn_policies import FairTurns
from headway.records.record_types import TopicPartition
from headway.runtime.gc_pause import GcPause

QUESTION = "How does the CPU time per record grow?"
FETCH = 500
POLL = 2_000  # shares that double from level to level need 1,023 records for 10 levels
CHUNK = 16  # records of one partition in a fetch from many partitions, and records that are finished at once
COMMIT_EVERY = 50_000  # records; at 10,000 records per second and with the default interval of 5 s
LANES, PARTITIONS, TENANTS = (10, 1_000, 10_000), (1, 100, 2_000), (100, 10_000)
LEVELS, IN_FLIGHT = (1, 5, 10), (1_000, 10_000, 100_000)
INCOMPLETE = (5_000, 20_000, 100_000)  # incomplete offsets of one partition, a tenth of all its offsets
MEMBER_RECORDS, FLOOD_RECORDS = 300_000, 112_500
RECORD_BYTES = 612
MB = 1024 * 1024
ERROR = ValueError()
MEMORY_BOUND_MB = 150
NEGLIGIBLE = 0.2  # µs per record; a cost below this is not checked, because it is a cost per poll and not per record


@dataclass(eq=False, slots=True)
class Record:
    """A record with the attributes that the engine and the accumulator use."""

    offset: int
    raw_key: bytes
    size: int = RECORD_BYTES
    since: float = 0.0
    queue: Any = field(default=None, repr=False)


class CpuClock:
    """Measures the CPU time between the end of the warm-up and the last record."""

    def __init__(self, warm_up: int, count: int) -> None:
        self._warm_up, self._last = warm_up, warm_up + count
        self._began: tuple[float, int] | None = None
        self._left_out = self._stopped = 0.0
        self.microseconds = 0.0

    def stop(self) -> None:
        """Do not count the CPU time from now on, because it makes the input."""
        self._stopped = time.process_time()

    def go_on(self) -> None:
        """Count the CPU time again."""
        self._left_out += time.process_time() - self._stopped

    def is_over(self, done: int) -> bool:
        """Note that `done` records are done, and return whether these are all records."""
        if self._began is None and done >= self._warm_up:
            self._began = time.process_time() - self._left_out, done
        if self._began is None or done < self._last:
            return False
        began, number = self._began
        self.microseconds = (time.process_time() - self._left_out - began) / (done - number) * 1e6
        return True


class EngineRun:
    """An engine, and a driver that receives, starts, finishes and commits records.

    While `in_flight` records are running, the oldest of them are finished, and others are started. If `is_failing` is
    true, the first attempt at each record fails, and the record waits for its next attempt.
    """

    def __init__(
        self,
        *,
        keys: int = 1_000,
        partitions: int = 1,
        levels: int = 1,
        in_flight: int = 1_000,
        tenants: int = 0,
        policy: PolicyName = "fair",
        ordering: Ordering = Ordering.KEY,
        memory: int = 1024 * MB,
        is_failing: bool = False,
        batch: int = 0,
        **options: Any,
    ) -> None:
        self.backlog = in_flight + 2 * FETCH * levels
        self._engine: Engine[Record] = Engine(
            ordering,
            levels=levels,
            slots=make_slots(policy, None, levels, in_flight, max_wait=5.0),
            most_bytes=memory,
            tenants={} if tenants else None,
            **options,
        )
        if batch:
            self._engine.let_batches_fill(batch, 0.01)
        self._in_flight, self._batch, self._is_failing, self._partitions = in_flight, batch, is_failing, partitions
        self._turns = []
        for level in range(levels):
            of_level = [TopicPartition("orders", partition=number, level=level) for number in range(partitions)]
            for each in of_level:
                self._engine.assign(each, OffsetMap(0))
            self._turns.append(cycle(of_level))
        self._ends: Counter[TopicPartition] = Counter()
        self._draw = random.Random(4)
        self._keys = [f"key {number}".encode() for number in range(keys)]
        self._tenants = [f"tenant {number}" for number in range(tenants)]
        self._size = FETCH if partitions == 1 else CHUNK
        self._running: deque[Any] = deque()
        self._received = self._done = 0
        self._now = 0.0

    def run(self, clock: CpuClock) -> None:
        """Run until the clock has seen enough records."""
        committed = 0
        while not clock.is_over(self._done):
            self._fetch(clock)
            for _ in range(FETCH // CHUNK):
                self._now += 0.001
                self._start()
                self._finish()
            if self._done - committed >= COMMIT_EVERY:
                committed = self._done
                self._engine.committed(self._engine.tick())

    def _fetch(self, clock: CpuClock) -> None:
        paused = self._engine.paused()
        demand = self._engine.demand()
        for level, wanted in enumerate(demand):
            missing = (self.backlog - self._received + self._done) // (len(demand) - level)
            missing = min(wanted, FETCH, missing)
            for each in islice(self._turns[level], self._partitions):
                if missing <= 0:
                    break
                if each not in paused:
                    self._receive(each, clock)
                    missing -= self._size

    def _receive(self, partition: TopicPartition, clock: CpuClock) -> None:
        clock.stop()
        first = self._ends[partition]
        self._ends[partition] += self._size
        records = [Record(first + number, self._draw.choice(self._keys)) for number in range(self._size)]
        tenants = self._draw.choices(self._tenants, k=self._size) if self._tenants else ()
        clock.go_on()
        with GcPause():
            self._engine.receive(partition, records, self._now, tenants=tenants)
        self._received += self._size

    def _start(self) -> None:
        while (free := self._in_flight - len(self._running)) > 0:
            if self._batch:
                started = self._engine.take_batch(min(self._batch, free), self._now)
            else:
                started = self._engine.take(min(CHUNK, free), self._now)
            if not started:
                return
            self._running.extend(started)

    def _finish(self) -> None:
        for _ in range(min(CHUNK, len(self._running))):
            attempt = self._running.popleft()
            if self._is_failing and attempt.failure is None:
                self._engine.retry(attempt, self._now + 0.1, ERROR, self._now)
            else:
                self._done += self._engine.finish(attempt, self._now)


def engine(count: int, **options: Any) -> float:
    """Return the CPU time per record of an `EngineRun` with these options."""
    run = EngineRun(**options)
    clock = CpuClock(count // 4 + run.backlog, count)
    run.run(clock)
    return clock.microseconds


def offset_map(count: int, *, incomplete: int) -> float:
    """Finish the records of a partition whose offset map is fragmented, and ask after each 16 whether it is too large.

    Whenever half of the incomplete records are finished, another partition begins.
    """
    clock, done, draw = CpuClock(count // 4, count), 0, random.Random(5)
    while not clock.is_over(done):
        clock.stop()
        assignment: Assignment[Record] = Assignment(TopicPartition("orders", partition=0), OffsetMap(0), 1)
        progress = assignment.progress
        progress.receive(range(10 * incomplete))
        left = draw.sample(range(10 * incomplete), incomplete)
        for offset in {*range(10 * incomplete)}.difference(left):
            progress.complete(offset)
        assignment.finished = 9 * incomplete
        assignment.is_pressed()
        clock.go_on()
        for begin in range(0, incomplete // 2, CHUNK):
            for offset in left[begin : begin + CHUNK]:
                progress.complete(offset)
            assignment.finished += CHUNK
            assignment.is_pressed()
            done += CHUNK
            if clock.is_over(done):
                break
    return clock.microseconds


def polls(count: int, *, levels: int, policy: PolicyName) -> float:
    """Divide polls of 2,000 records among levels with a backlog."""
    _, tested = make_policy(policy, None, levels, POLL)
    buffers: list[LevelBuffer[int]] = [LevelBuffer() for _ in range(levels)]
    clock, done, now = CpuClock(count // 4, count), 0, 0.0
    records = list(range(2 * POLL))
    while not clock.is_over(done):
        now += 0.01
        for buffer, wanted in zip(buffers, tested.demand(buffers), strict=True):
            buffer.put(records[:wanted], now)
        for buffer, share in zip(buffers, tested.split(buffers, POLL, now), strict=True):
            done += len(buffer.take(share))
    return clock.microseconds


def fetch_buffer(count: int, *, partitions: int, limit: int) -> float:
    """Take records of 1 KB from a buffer that all partitions flood."""
    buffer: FetchBuffer[int, int] = FetchBuffer(MB, 16 * MB, 0.2)
    clock, done = CpuClock(count // 4, count), 0
    names, records = cycle(range(partitions)), list(range(CHUNK))
    while not clock.is_over(done):
        if buffer.wants_more or not buffer:
            buffer.release()
            while not buffer.is_full:
                buffer.put("orders", next(names), records[:], len(records) * 1024)
            buffer.hold()
        done += len(buffer.take(limit))
        buffer.keep_pace(10_000)
    return clock.microseconds


def accumulator(
    count: int, *, partitions: int = 12, levels: int = 1, in_flight: int = 1_000, is_designated: bool = True
) -> float:
    """Put, drain and report records, 16 of each partition in turn, while `in_flight` records are in the buffer."""
    limits = Limits(memory=4 * levels * in_flight * RECORD_BYTES + 64 * MB, window=16 * MB)
    tested: Accumulator[Record] = Accumulator(levels, FairTurns([2**level for level in range(levels)]), limits)
    queues: list[Queue[Record]] = []
    for level in range(levels):
        topic = tested.topic(f"orders-{level}", level)
        tested.learn(topic, partitions, range(partitions))
        queues += [topic.queue(number) for number in range(partitions)] if is_designated else [topic.undesignated]
    clock, done, number = CpuClock(count // 4 + in_flight, count), 0, 0
    flying: deque[Record] = deque()
    while not clock.is_over(done):
        clock.stop()
        records = [Record(0, b"") for _ in range(FETCH)]
        clock.go_on()
        for record in records:
            assert tested.put(queues[number // CHUNK % len(queues)], record)
            number += 1
        for batch in tested.drain(512 * 1024, 0.0):
            for record in batch.records:
                record.queue = batch.queue
                flying.append(record)
        while len(flying) > in_flight:
            record = flying.popleft()
            if not record.queue.returned:
                tested.reported.append(record.queue)
            record.queue.returned += record.size
            done += 1
        tested.settle(0.0)
    return clock.microseconds


@dataclass(frozen=True)
class Row:
    """One table row: `cost` returns the CPU time per record in microseconds for a number of records and a size."""

    case: str
    of: str
    sizes: Sequence[int]
    cost: Callable[..., float] = engine
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def at(self, size: int, count: int) -> float:
        """Measure once."""
        gc.collect()
        return self.cost(count, **self.options, **{self.name: size})


def rows() -> list[Row]:
    """The rows that need no Kafka."""
    unordered = {"ordering": Ordering.UNORDERED}
    found = [
        Row("engine", "lanes", LANES, engine, "keys"),
        Row("engine, batches of 100", "lanes", LANES[1:], engine, "keys", {"batch": 100}),
        Row("engine, a rate per key", "lanes", LANES, engine, "keys", {"key_rate": 1e6}),
        Row("engine", "partitions", PARTITIONS, engine, "partitions"),
        Row(
            "engine, memory is full",
            "partitions",
            PARTITIONS,
            engine,
            "partitions",
            {"in_flight": 10_000, "memory": 8 * MB},
        ),
        Row(
            "engine, 3 levels, strict",
            "partitions",
            PARTITIONS,
            engine,
            "partitions",
            {"levels": 3, "policy": "strict"},
        ),
        Row("fetch buffer, takes of 50", "partitions", PARTITIONS, fetch_buffer, "partitions", {"limit": 50}),
        Row("fetch buffer, takes of 500", "partitions", PARTITIONS, fetch_buffer, "partitions", {"limit": 500}),
        Row("accumulator, given partitions", "partitions", PARTITIONS, accumulator, "partitions"),
        Row(
            "accumulator, any partition", "partitions", PARTITIONS, accumulator, "partitions", {"is_designated": False}
        ),
        Row("engine", "tenants", TENANTS, engine, "tenants", {"keys": 10_000}),
        Row("engine, a rate per tenant", "tenants", TENANTS, engine, "tenants", {"keys": 10_000, "tenant_rate": 1e6}),
        Row(
            "engine, 3 levels, strict",
            "tenants",
            TENANTS,
            engine,
            "tenants",
            {"keys": 10_000, "levels": 3, "policy": "strict"},
        ),
        Row("accumulator", "levels", LEVELS, accumulator, "levels"),
        Row("engine", "in flight", IN_FLIGHT, engine, "in_flight", {"partitions": 10, **unordered}),
        Row("engine, all fail once", "in flight", IN_FLIGHT, engine, "in_flight", {"is_failing": True, **unordered}),
        Row("accumulator", "in flight", IN_FLIGHT, accumulator, "in_flight"),
        Row("offset map", "incomplete offsets", INCOMPLETE, offset_map, "incomplete"),
    ]
    policies: list[PolicyName] = ["fair", "strict", "capacity_burst"]
    for policy in policies:
        found.append(
            Row(
                f"engine, {policy}",
                "levels",
                LEVELS,
                engine,
                "levels",
                {"policy": policy, "in_flight": 2_048, **unordered},
            )
        )
        found.append(Row(f"polls, {policy}", "levels", LEVELS, polls, "levels", {"policy": policy}))
    return found


@dataclass
class Curve:
    """The figures of a row by size, in microseconds."""

    row: Row
    costs: dict[int, float]


def measure_core(report: Report, row: Row, options: Options) -> Curve:
    """Measure the sizes of a row in turns."""
    count, rounds, most = (2_000, 1, 10_000) if options.quick else (60_000, 3, 100_000)
    costs: dict[int, float] = {}
    for _ in range(rounds):
        for size in [size for size in row.sizes if size <= most]:
            cost = row.at(size, count)
            costs[size] = min(cost, costs.get(size, cost))
    return note(report, Curve(row, costs))


def note(report: Report, curve: Curve, plain: Curve | None = None) -> Curve:
    """Add the figures to the report, and check how they grow.

    The growth of `plain`, the client without Headway, is also accepted.
    """
    row = curve.row
    for size, cost in curve.costs.items():
        report.add(f"{row.case}: {size:,} {row.of}", "headway", cost, "µs a record")
    pairs = list(pairwise(curve.costs.items()))
    if row.of == "levels":  # one level needs no policy, and each further level costs about the same
        first, *others = curve.costs.items()
        pairs = [(first, other) for other in others]
    for (small, before), (large, after) in pairs:
        if after < NEGLIGIBLE:
            continue
        bound = log(1 + large) / log(1 + small)
        if plain:
            bound = max(bound, plain.costs[large] / plain.costs[small])
        report.at_most(f"{row.case}: {small:,} to {large:,} {row.of}", after / before, round(bound, 2))
    return curve


def member(kind: str, servers: str, topic: str, count: int, per_second: int = 0) -> tuple[float, float]:
    """Return the CPU time per record in microseconds, and the memory in MB, of a process that reads a topic."""
    program = [sys.executable, str(Path(__file__).with_name("_member.py")), kind, servers, topic, str(count)]
    done = subprocess.run([*program, str(per_second)], capture_output=True, text=True, timeout=300, check=True)
    cost, memory = done.stdout.split()
    return float(cost), float(memory)


def members(report: Report, options: Options) -> list[Curve]:
    """Read topics of 1 KB records with one member: at full speed for the CPU time, and at 4,700 a second for memory.

    A quick run leaves the memory out, because filling 300 partitions takes too long.
    """
    count, rounds = (20_000, 1) if options.quick else (MEMBER_RECORDS, 3)
    kinds = ["plain", "loop"] if options.quick else ["plain", "poll", "loop"]
    sizes = PARTITIONS[:2] if options.quick else PARTITIONS
    flooded: list[int] = [] if options.quick else [10, 300]
    curves = [Curve(Row(f"member, {kind}", "partitions", PARTITIONS), {}) for kind in kinds]
    with options.broker() as servers:
        admin = AdminClient({"bootstrap.servers": servers})
        topics: dict[int, str] = {}
        for number in {*sizes, *flooded}:
            topics[number] = f"growth-{uuid.uuid4().hex[:8]}"
            admin.create_topics([NewTopic(topics[number], number, 1)])[topics[number]].result()
            fill(servers, topics[number], number, count if number in sizes else FLOOD_RECORDS)
        for _ in range(rounds):
            for kind, curve in zip(kinds, curves, strict=True):
                for number in sizes:
                    cost, _ = member(kind, servers, topics[number], count)
                    curve.costs[number] = min(cost, curve.costs.get(number, cost))
        for number in flooded:
            for kind in ("threads", "loop", "poll"):
                memory = member(kind, servers, topics[number], FLOOD_RECORDS // 2, 4_700)[1]
                report.add(f"member, {kind}: {number} flooded partitions", "headway", memory, "MB")
                report.at_most(f"member, {kind}: {number} flooded partitions, MB", memory, MEMORY_BOUND_MB)
    plain, *others = curves
    return [note(report, plain, plain), *(note(report, curve, plain) for curve in others)]


def plot(curves: Sequence[Curve], file: Path) -> None:
    """Draw each row beside the others of its kind."""
    kinds = list(dict.fromkeys(curve.row.of for curve in curves))
    columns = min(3, max(1, len(kinds)))
    figure = Figure(figsize=(4 * columns, 4 * -(-len(kinds) // columns)), layout="constrained")
    for number, kind in enumerate(kinds, start=1):
        axes = figure.add_subplot(-(-len(kinds) // columns), columns, number)
        for curve in curves:
            if curve.row.of == kind:
                axes.plot(list(curve.costs), list(curve.costs.values()), marker="o", label=curve.row.case)
        axes.set(xscale="log", xlabel=kind, ylabel="µs of CPU per record", ylim=(0, None))
        axes.legend(fontsize="x-small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def measure(report: Report, options: Options) -> None:
    """Measure each row, and draw the plot."""
    curves = [measure_core(report, row, options) for row in rows() if options.only in f"{row.case}, {row.of}"]
    if options.only in "member, partitions, memory":
        curves += members(report, options)
    plot(curves, options.plot or Path("bench-output/growth.svg"))


if __name__ == "__main__":
    main(QUESTION, measure, selects=True, plots=True)
