"""Headway beside its peers, in turns on one broker: does each kind of work reach its aim?

The peers are the Java parallel consumer where Maven and a JDK have it, plain confluent-kafka, a bare asyncio loop,
Spark's own connector where its jars can be had, and the bare relay of `delay.py`. Each run of a path is a process of
its own. Of several turns, the medians are shown, and the median of the turns' ratios.

Java uses as many cores as there are, Headway one for a consumer. So the CPU of a record stands beside each rate.
"""

import gc
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import delay
import parallel
import spark
from _connector import spark_settings
from _cpu_clock import Cost
from _harness import Options, Report, main
from _java_peer import JavaPeer, java_peer
from _speed_paths import SLOTS
from speed import empty_topics, filled_topics

from headway import Ordering
from headway.spark import local_session

QUESTION = "Headway beside its peers"
PROGRAM = Path(__file__).with_name("_peer_paths.py")
PATIENCE = 300.0  # seconds for one run
TABLE_SLOTS = 100
LONG_KEYS = 5  # rows of the table with at most this many keys take so long that one turn is enough
RATE = "records/s"
CPU = "µs of CPU a record"
ORDERINGS = {"by key": Ordering.KEY, "unordered": Ordering.UNORDERED}
RATE_AIMS = {
    ("asyncio", 0, "by key"): 1.3,
    ("asyncio", 0, "unordered"): 1.0,
    ("uvloop", 0, "by key"): 1.3,
    ("uvloop", 0, "unordered"): 1.0,
    ("asyncio", 10, "by key"): 1.2,
    ("asyncio", 10, "unordered"): 0.95,
    ("uvloop", 10, "by key"): 1.5,
    ("uvloop", 10, "unordered"): 1.15,
}
LOOPS = ("asyncio", "uvloop")


@dataclass(slots=True)
class Bench:
    """The broker, the report, and how much is measured."""

    report: Report
    servers: str
    quick: bool
    java: JavaPeer | None
    filled: str = ""

    @property
    def count(self) -> int:
        """The records of a run."""
        return 40_000 if self.quick else 300_000

    @property
    def rounds(self) -> int:
        """The turns of each."""
        return 1 if self.quick else 3

    def filled_topic(self) -> str:
        """A topic that has all records, and so has level 0 of the same name."""
        if not self.filled:
            self.filled = f"peers-{uuid.uuid4().hex[:8]}"
            filled_topics(self.servers, self.filled, self.count)
        return self.filled

    def run(self, path: str, topic: str, count: int, loop: str = "asyncio") -> Cost:
        """Run a path of `_peer_paths.py`."""
        command = [sys.executable, str(PROGRAM), path, self.servers, topic, str(count), loop]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise RuntimeError(f"{path} failed:\n{done.stderr}")
        return Cost(*map(float, done.stdout.split()[-2:]))

    def in_turns(self, systems: dict[str, Callable[[], Cost]]) -> dict[str, list[Cost]]:
        """Run each system once a round, every second round in the reverse order."""
        found: dict[str, list[Cost]] = {system: [] for system in systems}
        names = list(systems)
        for _ in range(self.rounds):
            for name in names:
                found[name].append(systems[name]())
            names.reverse()
        return found


def rates_of(costs: Sequence[Cost]) -> list[float]:
    """Records a second."""
    return [cost.per_second for cost in costs]


def cpu_of(costs: Sequence[Cost]) -> list[float]:
    """µs of CPU a record."""
    return [cost.microseconds for cost in costs]


def parallel_consumer(bench: Bench) -> None:
    """1,000 in flight, with handlers that return at once or take 10 ms."""
    for milliseconds in (0, 10):
        _compare_rates(bench, milliseconds)


def _compare_rates(bench: Bench, milliseconds: int) -> None:
    topic, count, java = bench.filled_topic(), bench.count, bench.java
    systems: dict[str, Callable[[], Cost]] = {}
    for name, ordering in ORDERINGS.items():
        if java:
            run = partial(java.cost, bench.servers, topic, count, ordering, SLOTS, milliseconds / 1000)
            systems[f"Java, {name}"] = run
        for loop in LOOPS:
            path = f"parallel, loop, {milliseconds} ms, {name}"
            systems[f"{loop}, {name}"] = partial(bench.run, path, topic, count, loop)
    if milliseconds:
        systems |= {f"bare {loop}": partial(bench.run, "bare tasks, 10 ms", "-", count, loop) for loop in LOOPS}
    found = bench.in_turns(systems)
    for loop, name in product(LOOPS, ORDERINGS):
        work, ours = f"{milliseconds} ms, {name}, {loop}", found[f"{loop}, {name}"]
        if java:
            theirs, aim = found[f"Java, {name}"], RATE_AIMS[loop, milliseconds, name]
            bench.report.compare(work, "Java", RATE, rates_of(theirs), rates_of(ours), at_least=aim)
            bench.report.compare(work, "Java", CPU, cpu_of(theirs), cpu_of(ours))
        if milliseconds:
            bare = found[f"bare {loop}"]
            bench.report.compare(work, f"bare {loop} loop", CPU, cpu_of(bare), cpu_of(ours), at_most=1.4)


def classic_table(bench: Bench) -> None:
    """The table of the Java parallel consumer with 100 in flight; on asyncio's loop, as uvloop rounds 0 to 5 ms."""
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # as where it is not installed
    gc.freeze()  # as a worker does
    topics, count = parallel.Topics(bench.servers), 1_000 if bench.quick else 10_000
    seconds = parallel.drawn_seconds(count)
    rows = parallel.table_rows(count)
    for name, ordering, keys in rows[5:6] if bench.quick else rows:
        of_record = [str(number % keys) for number in range(count)]
        topic = topics.filled(of_record, 1)
        long = ordering is Ordering.PARTITION or keys <= LONG_KEYS
        found: dict[str, list[parallel.Makespan]] = {"java": [], "threads": [], "async": []}
        for _ in range(1 if long else bench.rounds):
            if bench.java:
                timed = bench.java.calls(bench.servers, topic, seconds, ordering, TABLE_SLOTS)
                calls = [parallel.Call(offset, of_record[offset].encode(), *times) for offset, *times in timed]
                found["java"].append(parallel.makespan(calls, ordering, TABLE_SLOTS))
            for executor in ("threads", "async"):
                calls = parallel.all_calls(topics, topic, seconds, ordering, TABLE_SLOTS, executor)
                found[executor].append(parallel.makespan(calls, ordering, TABLE_SLOTS))
        _note_row(bench, f"table, {name}", found)


def _note_row(bench: Bench, work: str, found: dict[str, list[parallel.Makespan]]) -> None:
    java = [each.seconds for each in found["java"]]
    if java:
        bench.report.compare(f"{work}, Java", "ideal", "s", [each.ideal for each in found["java"]], java)
    for executor, name in (("async", "loop"), ("threads", "threads")):
        ours = [each.seconds for each in found[executor]]
        if java:
            bench.report.compare(f"{work}, {name}", "Java", "s", java, ours, at_most=1)
        ideal = [each.ideal for each in found[executor]]
        bench.report.compare(f"{work}, {name}", "ideal", "s", ideal, ours, at_most=parallel.TABLE_AIMS[TABLE_SLOTS])


def consumer(bench: Bench) -> None:
    """`poll` and iteration with three levels, of which the lowest has the records."""
    topic = bench.filled_topic()
    paths = {"plain": "plain consume", "poll": "consumer, poll", "iteration": "consumer, iteration"}
    found = bench.in_turns({name: partial(bench.run, path, topic, bench.count) for name, path in paths.items()})
    for name in ("poll", "iteration"):
        bench.report.compare(name, "consume", CPU, cpu_of(found["plain"]), cpu_of(found[name]), at_most=1.4)
        bench.report.compare(name, "consume", RATE, rates_of(found["plain"]), rates_of(found[name]))


def producer(bench: Bench) -> None:
    """`send` with futures that are looked at, to one topic, and to three levels beside three topics."""
    pairs = {
        "send": ("plain produce, one topic", "producer, send, no levels"),
        "send to three levels": ("plain produce, three topics", "producer, send"),
    }
    for work, paths in pairs.items():
        found = bench.in_turns({path: partial(_send_to_empty_topics, bench, path) for path in paths})
        theirs, ours = (found[path] for path in paths)
        bench.report.compare(work, "produce", RATE, rates_of(theirs), rates_of(ours), at_least=0.75)
        bench.report.compare(work, "produce", CPU, cpu_of(theirs), cpu_of(ours))


def _send_to_empty_topics(bench: Bench, path: str) -> Cost:
    return bench.run(path, empty_topics(bench.servers), bench.count)


def relay(bench: Bench) -> None:
    """How late a low-latency relay delivers, by the times at which the broker appends."""
    if not bench.quick:
        delay.warm_up(bench.servers)
    for rate in (1000,) if bench.quick else (1000, 5000, 20_000):
        own = Report("")
        delay.lateness(own, bench.servers, rate, "low-latency", *((1, 1) if bench.quick else (6, 3)))
        late = {
            each.system: each.value
            for each in own.results
            if each.case.endswith("appended") and each.unit.endswith("p99")
        }
        work = f"relay, {rate:,} due a second"
        bench.report.compare(work, "bare relay", "ms late, p99", [late["bare loop"]], [late["relay"]], at_most=1.5)


def spark_source(bench: Bench) -> None:
    """The source beside the connector with its best settings."""
    settings = spark_settings()
    if not settings:
        return
    session = local_session("headway peers", settings)
    try:
        rounds = spark.throughput(Report(""), spark.Bench(session, bench.servers, bench.quick, connector=True))
    finally:
        session.stop()
    for size, costs in rounds.items():
        theirs, ours = ([each[system] for each in costs] for system in ("connector, tuned", "headway"))
        work, aim = f"Spark source, {size:,} B", spark.SOURCE_AIMS[size]
        bench.report.compare(work, "connector, tuned", RATE, rates_of(theirs), rates_of(ours), at_least=aim)
        bench.report.compare(work, "connector, tuned", CPU, cpu_of(theirs), cpu_of(ours))


PARTS = {
    "parallel": parallel_consumer,
    "table": classic_table,
    "consumer": consumer,
    "producer": producer,
    "relay": relay,
    "spark": spark_source,
}


def measure(report: Report, options: Options) -> None:
    """Each part that was chosen."""
    with java_peer() as java, options.broker() as servers:
        bench = Bench(report, servers, options.quick, java)
        for name, part in PARTS.items():
            if options.only in name:
                part(bench)


if __name__ == "__main__":
    main(QUESTION, measure, selects=True)
