"""What would a cluster of any size do? A simulation that has to predict real runs on this machine before it is used.

(a) Measured is what a micro-batch, a task, a range and a record cost here. (b) With these costs the simulation of
`simulation` predicts real runs that it has not seen: one and two slots, one to 300 partitions, two executors, and
handlers that do nothing, use a core for 1 ms and wait for 10 ms. (c) It goes on to 10,000 partitions and 100M records a
second, skewed load, a straggler, a lost executor and an hour's outage. A whole run draws docs/scale.svg.

Run it with `PYTHONPATH=benchmarks python -m simulation.against_real_runs`, on a machine that does nothing else: it
takes half an hour. Each query runs in two sessions, and their difference says how well any model can do.
"""

import asyncio
import math
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from _harness import Options, Report, main
from confluent_kafka import Producer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.progress import track

from headway.kafka.admin import Admin
from headway.spark import local_session, parallel_map
from headway.spark.source.range_packing import TaskOptions
from simulation.query_on_cluster import (
    Arrivals,
    Costs,
    Executor,
    Handler,
    Outcome,
    Query,
    even,
    one_hot,
    simulate,
    zipf,
)

QUESTION = "What does a cluster of any size do, by a simulation that predicts real runs here?"
PICTURE = Path(__file__).parents[2] / "docs" / "scale.svg"
SIZE = 100  # bytes of a record
CALLS_AT_A_TIME = 1000
WARM = 2  # micro-batches that are dropped
BATCHES = 5
CPU, WAIT = 0.001, 0.010
CORES = psutil.cpu_count() or 1


# Real runs


async def do_nothing(row: Any, context: Any) -> int:
    """Take no time."""
    return 0


async def compute(row: Any, context: Any) -> int:
    """Use a core for a millisecond."""
    until = time.thread_time() + CPU
    while time.thread_time() < until:
        pass
    return 0


async def wait(row: Any, context: Any) -> int:
    """Wait as for a service."""
    await asyncio.sleep(WAIT)
    return 0


HANDLERS: dict[str, Callable[[Any, Any], Any] | None] = {
    "read": None,
    "nothing": do_nothing,
    "1 ms of a core": compute,
    "10 ms of waiting": wait,
}


@cache
def models() -> dict[str, Handler | None]:
    """Return the handlers as the simulation has them."""
    return {
        "read": None,
        "nothing": Handler(at_a_time=CALLS_AT_A_TIME),
        "1 ms of a core": Handler(cpu=CPU, at_a_time=CALLS_AT_A_TIME),
        "10 ms of waiting": Handler(cpu=_cpu_of_a_wait(), wait=WAIT, at_a_time=CALLS_AT_A_TIME),
    }


def _cpu_of_a_wait(count: int = 50_000) -> float:
    """Return the seconds of a core that the event loop needs for a call that waits, beside one that does nothing."""

    def of_all(handler: Callable[[Any, Any], Any]) -> float:
        async def call_all() -> None:
            for _ in range(0, count, CALLS_AT_A_TIME):
                await asyncio.gather(*(handler(None, None) for _ in range(CALLS_AT_A_TIME)))

        began = time.process_time()
        asyncio.run(call_all())
        return time.process_time() - began

    return max(0.0, of_all(wait) - of_all(do_nothing)) / count


RECORDS = {"read": 400_000, "nothing": 30_000, "1 ms of a core": 1_200, "10 ms of waiting": 30_000}
"""Of a micro-batch, for each handler."""


@dataclass(frozen=True, slots=True)
class Case:
    """A query over a backlog: its partitions, the records of a micro-batch, its handler, and the tasks it asks for."""

    partitions: int
    records: int
    handler: str = "read"
    tasks: int | None = None

    def __str__(self) -> str:
        tasks = "" if self.tasks is None else f", {self.tasks} tasks"
        return f"{self.partitions} partitions, {self.records:,} records, {self.handler}{tasks}"

    def query(self) -> Query:
        """Return the same for the simulation."""
        return Query(self.records, tasks=TaskOptions(least=self.tasks))


class Took(NamedTuple):
    """The seconds of a micro-batch, and of them those of its planning."""

    took: float
    planning: float


Runs = dict[Case, Took]


def _mean(rounds: Sequence[Runs]) -> Runs:
    """Return for each query the mean of its sessions."""
    return {
        case: Took(*(statistics.fmean(values) for values in zip(*(each[case] for each in rounds), strict=True)))
        for case in rounds[0]
    }


def _differences(sessions: Iterable[Sequence[Runs]], cases: Sequence[Case]) -> list[float]:
    """Return by which part each query takes longer in its slowest session than in its quickest."""
    took = ([runs[case].took for runs in of_one] for of_one in sessions for case in cases)
    return [max(each) / min(each) - 1 for each in took]


@dataclass(slots=True)
class Bench:
    """A broker with a backlog for each number of partitions, and one session."""

    servers: str
    spark: SparkSession
    topics: dict[int, str]

    def run(self, case: Case) -> Took:
        """Return the median seconds of a micro-batch, by Spark's own account."""
        given = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topics[case.partitions],
            "levels": "1",
            "startingOffsets": "earliest",
            "maxRecordsPerTrigger": str(case.records),
            **({} if case.tasks is None else {"minPartitions": str(case.tasks)}),
        }
        frame = self.spark.readStream.format("headway").options(**given).load()
        handler = HANDLERS[case.handler]
        if handler is None:
            frame = frame.where(sf.length("value") != SIZE)
        else:
            frame = parallel_map(frame, handler, "int", key="value", max_concurrency=CALLS_AT_A_TIME)
        took = [each["durationMs"] for each in _progress(frame)[WARM:]]
        return Took(
            statistics.median(each["triggerExecution"] for each in took) / 1000,
            statistics.median(each["latestOffset"] for each in took) / 1000,
        )


def _progress(frame: DataFrame) -> list[Any]:
    """Return what Spark tells of the first micro-batches of a query."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            while len(full := [each for each in query.recentProgress if each["numInputRows"]]) < WARM + BATCHES:
                if error := query.exception():
                    raise error
                time.sleep(0.05)
        finally:
            query.stop()
    return full


MASTERS = {"1 slot": "local[1]", "2 slots": "local[2]", "2 executors": "local-cluster[2,1,1024]"}


@contextmanager
def session(servers: str, master: str, topics: dict[int, str]) -> Iterator[Bench]:
    """Run a session with so many slots; its Java ends with it, so that the next one has other executors."""
    spark = local_session("headway scale", {"spark.executor.memory": "1g"}, master=master)
    try:
        yield Bench(servers, spark, topics)
    finally:
        spark.stop()


def fill(servers: str, partitions: int, records: int) -> str:
    """Make a topic with a backlog, evenly over its partitions; each value is another key."""
    topic = f"scale-{uuid.uuid4().hex[:8]}"
    Admin({"bootstrap.servers": servers}).create([f"{topic}-0"], partitions)
    # The batches of a Java producer as it comes: a broker gives whole ones, however few records are asked for.
    batches = {"linger.ms": 20, "batch.size": 16_384}
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 0, **batches})
    for number in range(records):
        producer.produce(f"{topic}-0", b"%0*d" % (SIZE, number), partition=number % partitions)
        if not number % 10_000:
            producer.poll(0)
    assert producer.flush(120) == 0
    producer.close()
    return topic


# (a) What things cost


@dataclass(frozen=True, slots=True)
class Measured:
    """The cases from which costs follow: a cost is the difference of two of them."""

    empty: Case
    many_ranges: Case
    many_tasks: Case
    read: Case
    read_twice: Case
    stage_empty: Case
    stage: Case
    stage_twice: Case

    @classmethod
    def of(cls, many: int, reads: int, staged: int) -> "Measured":
        """Return them for so many partitions and records."""
        return cls(
            empty=Case(1, 10),
            many_ranges=Case(many, 10 * many, tasks=1),
            many_tasks=Case(many, 10 * many, tasks=many),
            read=Case(1, reads),
            read_twice=Case(2, 2 * reads, tasks=2),
            stage_empty=Case(1, 10, "nothing"),
            stage=Case(1, staged, "nothing"),
            stage_twice=Case(2, 2 * staged, "nothing", tasks=2),
        )


def costs_of(cases: Measured, one: Runs, two: Runs, start: float, broker: float) -> tuple[Costs, Costs]:
    """Return the costs from runs with one slot and with two: here, and where brokers have machines of their own.

    The two slots are of one process, or of two executors, whose tasks and micro-batches cost more.

    `start` is what a task without Python takes, of which the driver's part is less. `broker` is its share of a record.
    """
    many = cases.many_tasks.partitions
    plan = max(0.0, two[cases.many_ranges].planning - two[cases.empty].planning) / (many - 1)
    one_range = max(0.0, one[cases.many_ranges].took - one[cases.empty].took) / (many - 1) - plan
    task = max(1e-4, one[cases.many_tasks].took - one[cases.many_ranges].took) / (many - 1)
    of_two = max(1e-4, two[cases.many_tasks].took - two[cases.many_ranges].took) / (many - 1)
    record, of_two_reads = _for_each(cases.read, cases.read_twice, cases.empty, two)
    staged, of_two_staged = _for_each(cases.stage, cases.stage_twice, cases.stage_empty, two)
    here = Costs(
        batch=two[cases.empty].took - plan - task,
        plan=plan,
        start=min(start, of_two),
        task=task,
        task_cores=task * _load(task, of_two),
        record=record,
        record_cores=record * _load(record, of_two_reads),
        range=max(0.0, one_range),
        staged=staged,
        staged_cores=staged * _load(staged, of_two_staged),
    )
    return here, replace(
        here,
        record_cores=max(record, here.record_cores - broker),
        staged_cores=max(staged, here.staged_cores - broker),
    )


def _for_each(single: Case, twice: Case, empty: Case, runs: Runs) -> tuple[float, float]:
    """Return the seconds for each record of one task that is alone, and for each of two tasks that are side by side."""
    alone = (runs[single].took - runs[empty].took) / single.records
    return alone, (runs[twice].took - runs[empty].took) / twice.records


def _load(alone: float, for_each_of_two: float) -> float:
    """Return how many cores one uses that is alone, from the time for each of many where two run at a time."""
    return max(1.0, for_each_of_two * CORES / alone)


def _start_of_a_task(spark: SparkSession, tasks: int = 1000) -> float:
    """Return the most that the driver needs for a task: what an empty one takes that uses no Python."""
    job = spark.range(0, tasks, 1, tasks).write.format("noop").mode("overwrite")
    job.save()
    began = time.perf_counter()
    job.save()
    return (time.perf_counter() - began) / tasks


# (b) Real runs that it has not seen


def predicted(case: Case, executors: Sequence[Executor], costs: Costs) -> float:
    """Return the seconds of a micro-batch over a backlog."""
    handler = models()[case.handler]
    backlog = Arrivals([1e9], even(case.partitions), outage=1.0)
    outcome = simulate(backlog, executors, costs, handler, case.query(), seconds=1e-3)
    return outcome.batches[0].took


def cases(*, quick: bool) -> list[Case]:
    """Return what is run for real."""
    found = []
    for partitions in (1, 12) if quick else (1, 12, 300):
        for handler, records in RECORDS.items():
            found.append(Case(partitions, records // 4 if quick else records, handler))
    return found


def compare(
    report: Report, name: str, executors: Sequence[Executor], costs: Costs, cases: Sequence[Case], runs: Runs
) -> list[float]:
    """Report what was measured beside what is predicted; return the errors, as parts of what was measured."""
    errors = []
    for case in cases:
        real, model = runs[case].took, predicted(case, executors, costs)
        report.add(f"{name}, {case}", "predicted", 1000 * model, "ms")
        errors.append(abs(model / real - 1))
    return errors


# (c) Beyond


RATES = (1e4, 1e5, 1e6, 1e7, 1e8)
PARTITIONS = (10, 100, 1_000, 10_000)
LEVELS = (0.70, 0.29, 0.01)
TARGETS = {10: 1.0, 100: 1.0, 1_000: 2.0, 10_000: 20.0}
"""The seconds of a micro-batch that are asked for: planning and tasks alone take their part of them."""
MOST = 10**9
SLOTS = 16


def cluster(rate: float, costs: Costs, handler: Handler | None = None) -> list[Executor]:
    """Return the executors that use half of their cores for a rate, of 16 slots each; at least two."""
    cores = rate * (costs.record_cores if handler is None else costs.staged_cores + handler.cpu)
    return [Executor(SLOTS, SLOTS)] * max(2, round(2 * cores / SLOTS + 0.5))


def beyond(report: Report, costs: Costs, *, quick: bool) -> dict[tuple[int, float], Outcome]:
    """Simulate each rate over each number of partitions, for some seconds."""
    rates, partitions = ((1e5, 1e6), (10, 100)) if quick else (RATES, PARTITIONS)
    found = {}
    grid = [(count, rate) for count in partitions for rate in rates]
    for count, rate in track(grid, "Simulating clusters"):
        executors, seconds = cluster(rate, costs), max(20.0 if quick else 60.0, 10 * TARGETS[count])
        arrivals = Arrivals([rate * part for part in LEVELS], even(count))
        outcome = simulate(arrivals, executors, costs, None, Query(MOST, TARGETS[count]), seconds)
        found[count, rate] = outcome
        case = f"{rate:,.0f} records/s in {count:,} partitions a level, {len(executors)} executors"
        report.add(case, "high level's p99", outcome.wait(2, 99, seconds / 2), "s")
        report.add(case, "lag at the end", outcome.lag[-1][1] / rate, "s of arrivals")
        report.add(case, "cores busy", outcome.busy_cores(), "cores")
    return found


def mishaps(report: Report, costs: Costs, *, quick: bool) -> dict[str, Outcome]:
    """Simulate what goes wrong, at 1M records a second in 100 partitions."""
    rate, count, seconds = 1e6, 100, 40.0 if quick else 120.0
    rates = [rate * part for part in LEVELS]
    executors = cluster(rate, costs)
    lost = [replace(executors[0], lost_at=seconds / 3), *executors[1:]]
    slow = [replace(executors[0], speed=0.2), *executors[1:]]
    scenes: dict[str, tuple[Arrivals, list[Executor], TaskOptions]] = {
        "as it should be": (Arrivals(rates, even(count)), executors, TaskOptions()),
        "Zipf over partitions": (Arrivals(rates, zipf(count)), executors, TaskOptions()),
        "one partition × 50": (Arrivals(rates, one_hot(count)), executors, TaskOptions()),
        "one partition × 50, split": (Arrivals(rates, one_hot(count)), executors, TaskOptions(split=True)),
        "one executor at a fifth of the speed": (Arrivals(rates, even(count)), slow, TaskOptions()),
        "one of the executors lost": (Arrivals(rates, even(count)), lost, TaskOptions()),
        "after an hour's outage": (Arrivals(rates, even(count), outage=3600.0), executors, TaskOptions()),
    }
    found = {}
    for name, (arrivals, machines, tasks) in track(scenes.items(), "Simulating mishaps"):
        outcome = simulate(arrivals, machines, costs, None, Query(MOST, TARGETS[count], tasks), seconds)
        found[name] = outcome
        report.add(name, "high level's p99", outcome.wait(2, 99, seconds / 2), "s")
        report.add(name, "lag at the end", outcome.lag[-1][1] / rate, "s of arrivals")
    return found


def draw(clusters: dict[tuple[int, float], Outcome], scenes: dict[str, Outcome]) -> Figure:
    """Draw waits, cores and lag over the rate, and the lag over time where something goes wrong."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    figures: list[tuple[str, Callable[[Outcome, float], float]]] = [
        ("p99 of the high level's wait, s", lambda outcome, _: outcome.wait(2, 99, outcome.lag[-1][0] / 2)),
        ("cores that are busy", lambda outcome, _: outcome.busy_cores()),
        ("lag at the end, seconds of arrivals", lambda outcome, rate: max(outcome.lag[-1][1] / rate, 1e-2)),
    ]
    for at, (title, figure_of) in zip(axes.flat, figures, strict=False):
        for count in sorted({count for count, _ in clusters}):
            rates = sorted(rate for partitions, rate in clusters if partitions == count)
            values = [figure_of(clusters[count, rate], rate) for rate in rates]
            at.plot(rates, values, marker="o", label=f"{count:,} partitions a level")
        _label(at, title, "records/s", "log")
    for name, outcome in scenes.items():
        times, lags = zip(*outcome.lag, strict=True)
        axes[1, 1].plot(times, [max(1.0, lag) for lag in lags], label=name)
    _label(axes[1, 1], "records that wait, at 1M records/s", "s", "linear")
    return figure


def _label(at: Axes, title: str, across: str, scale: str) -> None:
    at.set_title(title, loc="left")
    at.set_xlabel(across)
    at.set_xscale(scale)
    if any(math.isfinite(y) and y > 0 for line in at.lines for y in np.asarray(line.get_ydata(), float).tolist()):
        at.set_yscale("log")
    at.grid(alpha=0.3)
    at.legend(fontsize="small")


def measure(report: Report, options: Options) -> None:
    """Costs, predictions of real runs, and what they say of larger clusters."""
    quick = options.quick
    counts = (1, 2, 12, 100) if quick else (1, 2, 12, 300)
    measured = Measured.of(counts[-1], *((60_000, 8_000) if quick else (300_000, 20_000)))
    to_measure = [getattr(measured, each.name) for each in fields(measured)]
    to_predict = cases(quick=quick)
    rounds: list[dict[str, Runs]] = []
    with options.broker() as servers:
        topics = {count: fill(servers, count, 1_000_000 if quick else 4_000_000) for count in track(counts, "Filling")}
        for number in range(1 if quick else 2):
            rounds.append({})
            for name, master in MASTERS.items():
                with session(servers, master, topics) as bench:
                    bench.run(Case(2, 10_000, "nothing"))  # Java and Python are warm from here on
                    wanted = track([*to_measure, *to_predict], f"Session {number + 1}, {name}")
                    rounds[-1][name] = {case: bench.run(case) for case in wanted}
                    if name == "2 slots" and number == 0:
                        start, broker = _start_of_a_task(bench.spark), _broker_share(bench, measured.read_twice)
    runs = {name: _mean([each[name] for each in rounds]) for name in MASTERS}
    for name, of_name in runs.items():
        for case, took in of_name.items():
            report.add(f"{name}, {case}", "real", 1000 * took.took, "ms")
    in_process, _ = costs_of(measured, runs["1 slot"], runs["2 slots"], start, broker)
    of_executors, elsewhere = costs_of(measured, runs["1 slot"], runs["2 executors"], start, broker)
    for cost in fields(Costs):
        report.add("costs in one process", cost.name, 1e6 * getattr(in_process, cost.name), "µs")
        report.add("costs of executors", cost.name, 1e6 * getattr(of_executors, cost.name), "µs")
    report.add("costs of a cluster", "record_cores", 1e6 * elsewhere.record_cores, "µs")
    report.add("costs of a cluster", "staged_cores", 1e6 * elsewhere.staged_cores, "µs")
    # Two executors share the cores of one machine, and so they are one to the simulation.
    slots = {"1 slot": (1, in_process), "2 slots": (2, in_process), "2 executors": (2, of_executors)}
    errors = [
        error
        for name, (count, costs) in slots.items()
        for error in compare(report, name, [Executor(count, CORES)], costs, to_predict, runs[name])
    ]
    differences = _differences(([each[name] for each in rounds] for name in MASTERS), to_predict)
    report.add("two sessions with the same query differ by", "median", 100 * statistics.median(differences), "%")
    report.add("two sessions with the same query differ by", "largest", 100 * max(differences), "%")
    report.at_most("median error of the predictions", statistics.median(errors), 0.15)
    report.at_most("largest error of the predictions", max(errors), 0.15)
    clusters = beyond(report, elsewhere, quick=quick)
    scenes = mishaps(report, elsewhere, quick=quick)
    if not quick:
        draw(clusters, scenes).savefig(PICTURE)


def _broker_share(bench: Bench, case: Case) -> float:
    """Return the seconds of a core that the broker takes for a record, which a query reads."""
    brokers = [each for each in psutil.Process().children(recursive=True) if _is_broker(each)]
    if not brokers:
        return 0.0
    before = sum(sum(each.cpu_times()[:2]) for each in brokers)
    bench.run(case)
    used = sum(sum(each.cpu_times()[:2]) for each in brokers) - before
    return used / (case.records * (WARM + BATCHES))


def _is_broker(process: psutil.Process) -> bool:
    try:
        return "kafka.Kafka" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


if __name__ == "__main__":
    main(QUESTION, measure)
