"""How near does one parallel consumer come to what its slots allow?

(a) Records that take 0 to 5 ms, in every ordering, 16 in flight, beside the ideal makespan: that of list scheduling
with the very times that the handlers took. `peers.py` has 100 in flight, beside the Java parallel consumer. (b) Fixed
times against the bound, in flight ÷ time, and beside bare threads and tasks that do nothing but take that time. (c)
Keys of which few are frequent. (d) Handlers that need the processor, in processes, beside one thread. (e) A crash with
everything done behind one stuck record. (f) The engine alone.
"""

import asyncio
import bisect
import gc
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import confluent_kafka as ck
import engine
from _harness import Options, Report, main
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import Batches, ConsumerRecord, Context, Ordering, ParallelConsumer
from headway.core.offsets.offset_map import decode_map
from headway.errors import KafkaError
from headway.experiments.makespan import shortest_makespan
from headway.kafka.binding import capi

QUESTION = "How near does one parallel consumer come to what its slots allow?"
ENGINE_AIM = 4.0  # µs a record
RATES = {
    ("async", 1000, 10, Ordering.KEY): 60_000,
    ("threads", 1000, 10, Ordering.KEY): 50_000,
    ("async", 1000, 0, Ordering.KEY): 100_000,
    ("async", 1000, 0, Ordering.UNORDERED): 150_000,
}
TABLE_AIMS = {16: 1.05, 100: 1.15}


class Topics:
    """Topics that are filled once."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})

    def filled(self, keys: Sequence[str], partitions: int) -> str:
        """A new topic with a record for each key."""
        topic = f"parallel-{uuid.uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
        settings = {"bootstrap.servers": self.servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        producer = ck.Producer(settings)
        for key in keys:
            producer.produce(topic, b"x" * 100, key)
        producer.flush()
        producer.close()
        return topic

    def consumer(self, topic: str, group: str | None = None, **options: Any) -> ParallelConsumer:
        """A consumer that reads it from the beginning."""
        config = {
            "bootstrap.servers": self.servers,
            "group.id": group or uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
        consumer = ParallelConsumer(config, **options)
        consumer.subscribe(topic)
        return consumer


def measure(report: Report, options: Options) -> None:
    """All parts in one run."""
    gc.freeze()  # as a worker does
    with options.broker() as servers:
        topics = Topics(servers)
        classic_table(report, topics, 1_000 if options.quick else 10_000, options.quick)
        rates(report, topics, options.quick)
        skewed_keys(report, topics, 2_000 if options.quick else 10_000)
        processes(report, topics, 400 if options.quick else 2_000)
        crash(report, topics, 10_000 if options.quick else 100_000)
    engine_alone(report, options.quick)


# (a) and (c): beside the ideal


class Call(NamedTuple):
    """What a handler saw."""

    offset: int
    key: bytes | None
    started: float
    ended: float


class Makespan(NamedTuple):
    """The seconds from the first call to the end of the last, and the least that they can be."""

    seconds: float
    ideal: float

    @property
    def ratio(self) -> float:
        """How many times the ideal it is."""
        return self.seconds / self.ideal


def table_rows(count: int) -> list[tuple[str, Ordering, int]]:
    """The table in the README of the Java parallel consumer: name, ordering, number of keys."""
    numbers = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
    keys = [(f"{keys:,} {'key' if keys == 1 else 'keys'}", Ordering.KEY, keys) for keys in numbers]
    return [("partition", Ordering.PARTITION, count), *keys, ("unordered", Ordering.UNORDERED, count)]


def classic_table(report: Report, topics: Topics, count: int, quick: bool) -> None:
    """The table of the Java parallel consumer: one partition, 0 to 5 ms a record."""
    rows = table_rows(count)
    for name, ordering, keys in rows[5:6] if quick else rows:
        topic = topics.filled([str(i % keys) for i in range(count)], 1)
        beside_ideal(report, topics, f"(a) {name}", topic, count, ordering, 16)


def skewed_keys(report: Report, topics: Topics, count: int) -> None:
    """A thousand keys; the i-th is as frequent as 1 ÷ i."""
    draw = random.Random(7)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, 1001)))
    keys = [str(bisect.bisect(weights, draw.random() * weights[-1])) for _ in range(count)]
    topic = topics.filled(keys, 1)
    for slots in TABLE_AIMS:
        beside_ideal(report, topics, "(c) Zipf keys", topic, count, Ordering.KEY, slots)


def beside_ideal(
    report: Report, topics: Topics, name: str, topic: str, count: int, ordering: Ordering, slots: int
) -> None:
    """Note the makespan on threads and on an event loop, as a multiple of the ideal."""
    for executor in ("threads", "async"):
        calls = all_calls(topics, topic, drawn_seconds(count), ordering, slots, executor)
        ratio = makespan(calls, ordering, slots).ratio
        report.add(f"{name}, {slots} in flight", executor, ratio, "× the ideal makespan")
        report.at_most(f"{name}, {slots} in flight, {executor}: × ideal", ratio, TABLE_AIMS[slots])


def drawn_seconds(count: int) -> list[float]:
    """How long each record takes, by offset."""
    draw = random.Random(11)
    return [draw.uniform(0, 0.005) for _ in range(count)]


def all_calls(
    topics: Topics, topic: str, seconds: Sequence[float], ordering: Ordering, slots: int, executor: str
) -> list[Call]:
    """Handle a topic of one partition, and return all calls."""
    consumer = topics.consumer(topic, ordering=ordering, max_concurrency=slots)
    calls: list[Call] = []

    def note(record: ConsumerRecord, started: float) -> None:
        calls.append(Call(record.offset, record.raw_key, started, time.perf_counter()))
        if len(calls) == len(seconds):
            consumer.stop()

    def handle(record: ConsumerRecord, context: Context) -> None:
        started = time.perf_counter()
        time.sleep(seconds[record.offset])
        note(record, started)

    async def handle_async(record: ConsumerRecord, context: Context) -> None:
        started = time.perf_counter()
        await asyncio.sleep(seconds[record.offset])
        note(record, started)

    consumer.run(handle if executor == "threads" else handle_async)
    return calls


def makespan(calls: Sequence[Call], ordering: Ordering, slots: int) -> Makespan:
    """How long the calls took together, beside list scheduling with their very times."""
    of_call: dict[Ordering, Callable[[Call], Any]] = {
        Ordering.KEY: lambda call: call.key,
        Ordering.PARTITION: lambda call: None,
        Ordering.UNORDERED: lambda call: call.offset,
    }
    lane = of_call[ordering]
    in_order = sorted(calls, key=lambda call: call.offset)
    shortest = shortest_makespan([(lane(call), call.ended - call.started) for call in in_order], slots)
    return Makespan(max(call.ended for call in calls) - min(call.started for call in calls), shortest)


# (b): fixed times


def rates(report: Report, topics: Topics, quick: bool) -> None:
    """Each number in flight with each time, on threads and on an event loop, by key, unordered and in batches."""
    count, seconds = (20_000, 1.0) if quick else (200_000, 3.0)
    topic = topics.filled([str(i % 10_000) for i in range(count)], 4)
    for executor in ("threads", "async"):
        for in_flight in (1000,) if quick else (100, 1000):
            for milliseconds in (0, 10, 100) if quick else (0, 1, 10, 100):
                bound = in_flight / milliseconds * 1000 if milliseconds else None
                limit = min(count, max(5 * in_flight, int(seconds * bound))) if bound else count
                rate = _rate(topics, topic, limit, executor, in_flight, milliseconds / 1000, Ordering.KEY)
                _note(report, executor, in_flight, milliseconds, Ordering.KEY, rate, bound)
                if milliseconds in (10, 100):
                    bare = _bare_threads if executor == "threads" else _bare_tasks
                    case = f"(b) {milliseconds} ms, {in_flight} in flight"
                    report.add(case, f"bare {executor}", bare(in_flight, milliseconds / 1000, limit), "records/s")
    rate = _rate(topics, topic, count, "async", 1000, 0, Ordering.UNORDERED)
    _note(report, "async", 1000, 0, Ordering.UNORDERED, rate, None)
    rate = _batch_rate(topics, topic, count)
    report.add("(b) 0 ms, batches of 100, unordered", "async", rate, "records/s")
    report.at_least("(b) 0 ms, batches of 100, async: records/s", rate, 150_000)


def _note(
    report: Report, executor: str, in_flight: int, ms: int, ordering: Ordering, rate: float, bound: float | None
) -> None:
    case = f"(b) {ms} ms, {in_flight} in flight" + ("" if ordering is Ordering.KEY else ", unordered")
    report.add(case, executor, rate, "records/s")
    if bound:
        report.add(case, executor, rate / bound, "of the bound")
        if bound <= 10_000:
            report.at_least(f"{case}, {executor}: part of the bound", rate / bound, 0.95)
    if aim := RATES.get((executor, in_flight, ms, ordering)):
        report.at_least(f"{case}, {executor}: records/s", rate, aim)


class Clock:
    """When the first record began and the last one ended."""

    def __init__(self, count: int, consumer: ParallelConsumer) -> None:
        self._count = count
        self._consumer = consumer
        self._began: list[float] = []
        self._ended = 0.0
        self._left = itertools.count(1)

    def begin(self) -> None:
        """A handler begins."""
        if not self._began:
            self._began.append(time.perf_counter())

    def end(self) -> None:
        """A handler ends."""
        if next(self._left) == self._count:
            self._ended = time.perf_counter()
            self._consumer.stop(drain=False)

    @property
    def rate(self) -> float:
        """Records per second."""
        return self._count / (self._ended - self._began[0])


def _rate(
    topics: Topics, topic: str, count: int, executor: str, in_flight: int, seconds: float, ordering: Ordering
) -> float:
    consumer = topics.consumer(topic, ordering=ordering, max_concurrency=in_flight)
    clock = Clock(count, consumer)

    def handle(record: ConsumerRecord, context: Context) -> None:
        clock.begin()
        if seconds:
            time.sleep(seconds)
        clock.end()

    async def handle_async(record: ConsumerRecord, context: Context) -> None:
        clock.begin()
        if seconds:
            await asyncio.sleep(seconds)
        clock.end()

    consumer.run(handle if executor == "threads" else handle_async)
    return clock.rate


def _batch_rate(topics: Topics, topic: str, count: int) -> float:
    consumer = topics.consumer(topic, ordering=Ordering.UNORDERED, max_concurrency=1000)
    clock = Clock(count, consumer)

    async def handle(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
        clock.begin()
        for _ in records:
            clock.end()

    consumer.run(handle, batches=Batches(100))
    return clock.rate


def _bare_threads(in_flight: int, seconds: float, count: int) -> float:
    """Threads that sleep and count."""
    left = itertools.count(1)

    def serve() -> None:
        while next(left) <= count:
            time.sleep(seconds)

    threads = [threading.Thread(target=serve) for _ in range(in_flight)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - started)


def _bare_tasks(in_flight: int, seconds: float, count: int) -> float:
    """Tasks that sleep and count."""
    left = itertools.count(1)

    async def serve() -> None:
        while next(left) <= count:
            await asyncio.sleep(seconds)

    async def serve_all() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(serve() for _ in range(in_flight)))
        return count / (time.perf_counter() - started)

    return asyncio.run(serve_all())


# (d): the processor


def need_the_processor(record: ConsumerRecord, context: Context) -> None:
    """Some milliseconds of Python."""
    sum(i * i for i in range(100_000))


def processes(report: Report, topics: Topics, count: int) -> None:
    """Two processes beside one thread."""
    topic = topics.filled([str(i) for i in range(count)], 4)
    alone = _processor_rate(topics, topic, count, max_concurrency=1)
    together = _processor_rate(topics, topic, count, max_concurrency=64, executor="process", processes=2)
    report.add("(d) handlers that need the processor", "one thread", alone, "records/s")
    report.add("(d) handlers that need the processor", "two processes", together, "records/s")
    report.at_least("(d) two processes, × one thread", together / alone, 1.8)


def _processor_rate(topics: Topics, topic: str, count: int, **options: Any) -> float:
    """Without the start of the processes: from the first results on."""
    consumer = topics.consumer(topic, **options)
    ended = [time.perf_counter() for _ in itertools.islice(consumer.results(need_the_processor), count)]
    first = count // 10
    return (count - first) / (ended[-1] - ended[first - 1])


# (e): a crash

PROGRAM = """
import sys, threading
from headway import ParallelConsumer
servers, topic = sys.argv[1:]
config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest",
          "auto.commit.interval.ms": 200, "session.timeout.ms": 6000}
def handle(record, context):
    if record.offset == 0:
        threading.Event().wait()
with ParallelConsumer(config, max_concurrency=16) as consumer:
    consumer.subscribe(topic)
    consumer.run(handle)
"""


def crash(report: Report, topics: Topics, count: int) -> None:
    """Everything is done and committed behind the first record; then the process is killed."""
    topic = topics.filled([str(i) for i in range(count)], 1)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, topics.servers, topic]) as process:
        try:
            deadline = time.monotonic() + 300
            while _committed_as_done(topics.servers, topic) < count - 1:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            process.send_signal(signal.SIGKILL)
    handled: list[int] = []
    consumer = topics.consumer(topic, group=topic)
    too_late = threading.Timer(180, consumer.stop)  # the group first misses the one that was killed, for 6 s

    def handle(record: ConsumerRecord, context: Context) -> None:
        handled.append(record.offset)
        threading.Timer(3, consumer.stop).start()

    too_late.start()
    consumer.run(handle)
    too_late.cancel()
    stuck = handled.count(0)
    others = len(handled) - stuck
    report.add(f"(e) {count:,} done behind one, killed", "the stuck one again", stuck, "records")
    report.add(f"(e) {count:,} done behind one, killed", "others again", others, "records")
    report.at_least("(e) the stuck one again", stuck, 1)
    report.at_most("(e) others again", others, 0)


def _committed_as_done(servers: str, topic: str) -> int:
    client = ck.Consumer({"bootstrap.servers": servers, "group.id": topic})
    try:
        [answer] = capi.committed(client, [(topic, 0)], 30).values()
    except KafkaError:  # the group's coordinator is only just found
        return 0
    finally:
        client.close()
    return sum(map(len, decode_map(answer[1], answer[0]).complete)) if answer and answer[1] else 0


# (f): the engine


def engine_alone(report: Report, quick: bool) -> None:
    """Receive, take, finish, commit; `benchmarks/engine.py` has more of it."""
    log = engine.log_of(50_000 if quick else 500_000, engine.KEYS)
    micros = engine.run([log], Ordering.KEY, 16) * 1e6
    report.add("(f) the engine alone, by key", "KEY", micros, "µs a record")
    report.at_most("(f) µs a record", micros, ENGINE_AIM)


if __name__ == "__main__":
    main(QUESTION, measure)
