"""How quick is the Spark source, how long do high records wait behind low ones, and how quickly are rows scheduled?"""

import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from _connector import spark_settings
from _cpu_clock import Cost, cpu_of_all
from _harness import Options, Report, main, percentile
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it
from pyspark.sql.streaming.query import StreamingQuery

from headway.core.levels.naming import level_topic
from headway.kafka.admin import Admin
from headway.spark import local_session

QUESTION = "The Spark source, beside Spark's own connector where its jars can be had"
LEVELS, PARTITIONS = 3, 4
SCHEDULING_TASKS = 8
SOURCE_AIMS = {100: 1.0, 1_000: 1.3}  # by the bytes of a row, as a multiple of the connector's speed
LIMIT = 50_000  # records of a micro-batch
HIGH_PER_S = 100
TRICKLE_PER_S = 200
FEWEST = 3  # micro-batches that a figure is made of
PATIENCE = 300.0  # seconds for them, beyond those that a query is given
# What was found to help it: fewer and larger fetches, one partition for each core, no checksums.
TUNED = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.receive.buffer.bytes": "1048576",
    "kafka.check.crcs": "false",
}


@dataclass(slots=True)
class Bench:
    """A session, a broker, and how each of the systems reads level topics."""

    spark: SparkSession
    servers: str
    quick: bool
    connector: bool
    admin: Admin = field(init=False)

    def __post_init__(self) -> None:
        self.admin = Admin({"bootstrap.servers": self.servers})

    def topic(self, name: str, levels: int = LEVELS) -> str:
        """A new topic with levels."""
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        self.admin.create([level_topic(topic, level) for level in range(levels)], PARTITIONS)
        return topic

    def ours(self, topic: str, levels: int = LEVELS) -> dict[str, str]:
        """The options of our source."""
        return {"kafka.bootstrap.servers": self.servers, "subscribe": topic, "levels": str(levels)}

    def theirs(self, topic: str, levels: int = LEVELS) -> dict[str, str]:
        """The options of the connector: it knows the Kafka topics alone."""
        names = ",".join(level_topic(topic, level) for level in range(levels))
        return {"kafka.bootstrap.servers": self.servers, "subscribe": names}

    def fill(self, kafka_topic: str, records: int, size: int) -> None:
        """Send so many records of so many bytes."""
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20, "queue.buffering.max.messages": 0})
        value = b"x" * size
        for number in range(records):
            producer.produce(kafka_topic, value, partition=number % PARTITIONS)
            if not number % 10_000:
                producer.poll(0)
        assert producer.flush(60) == 0


def measure(report: Report, options: Options) -> None:
    """Throughput, the time of a micro-batch, and the wait of high records."""
    settings = spark_settings()
    with options.broker() as servers:
        spark = local_session("headway benchmark", settings)
        try:
            bench = Bench(spark, servers, options.quick, connector=bool(settings))
            throughput(report, bench)
            trickle(report, bench)
            high_wait(report, bench)
            schedule(report, bench)
        finally:
            spark.stop()


def throughput(report: Report, bench: Bench) -> dict[int, list[dict[str, Cost]]]:
    """Rows a second into a filter that looks at every value; each system in turn, without the first round.

    Returns what a row cost in each round by system, for each size of the rows.
    """
    found: dict[int, list[dict[str, Cost]]] = {}
    for size, records in ((100, 100_000),) if bench.quick else ((100, 2_000_000), (1_000, 400_000)):
        case = f"read {records:,} rows of {size:,} B"
        topic = bench.topic("throughput", levels=1)
        bench.fill(level_topic(topic, 0), records, size)
        systems: dict[str, tuple[str, dict[str, str]]] = {"headway": ("headway", bench.ours(topic, 1))}
        if bench.connector:
            plain = bench.theirs(topic, 1)
            systems |= {"connector": ("kafka", plain), "connector, tuned": ("kafka", plain | TUNED)}
        rounds: list[dict[str, Cost]] = []
        for _ in range(2 if bench.quick else 8):
            rounds.append({})
            for name, (kind, given) in systems.items():
                rounds[-1][name] = _cost_to_read(bench.spark, kind, given, size, records)
        warm = found[size] = rounds[1:]
        for name in systems:
            report.add(case, name, statistics.median(costs[name].per_second for costs in warm), "rows/s")
            report.add(case, name, statistics.median(costs[name].microseconds for costs in warm), "µs of CPU a row")
        for name in (name for name in systems if name != "headway"):
            ratio = statistics.median(costs["headway"].per_second / costs[name].per_second for costs in warm)
            report.at_least(f"source ÷ {name}, {size:,} B", ratio, SOURCE_AIMS[size])
    return found


def _cost_to_read(spark: SparkSession, kind: str, options: dict[str, str], size: int, records: int) -> Cost:
    """How long the micro-batches took that read all, without the start of the query; and the CPU of the whole query."""
    began = cpu_of_all()
    frame = spark.readStream.format(kind).options(**options, startingOffsets="earliest").load()
    with _running(frame.where(F.length("value") != size), once=True) as query:
        query.awaitTermination()
    assert sum(each["numInputRows"] for each in query.recentProgress) == records
    seconds = sum(each["durationMs"]["triggerExecution"] for each in query.recentProgress) / 1000
    return Cost((cpu_of_all() - began) / records * 1e6, records / seconds)


def trickle(report: Report, bench: Bench) -> None:
    """The median time of a micro-batch when there is little to read."""
    topic = bench.topic("trickle")
    medians = {}
    with _sending(bench, topic, [0, 1, 2], TRICKLE_PER_S):
        for name, kind, options in _systems(bench, topic):
            with _running(bench.spark.readStream.format(kind).options(**options).load()) as query:
                times = _times(query, seconds=3 if bench.quick else 20)
            medians[name] = report.add("micro-batch, trickle, median", name, statistics.median(times), "ms")
    report.at_most("micro-batch, trickle, median ms", medians["headway"], 120)


def high_wait(report: Report, bench: Bench) -> None:
    """The time from sending a high record to the end of its micro-batch, while millions of low ones wait."""
    backlog = 300_000 if bench.quick else 3_000_000
    topic = bench.topic("wait")
    bench.fill(level_topic(topic, 0), backlog, 100)
    limits = {"headway": {"maxRecordsPerTrigger": str(LIMIT)}, "connector": {"maxOffsetsPerTrigger": str(LIMIT)}}
    for name, kind, options in _systems(bench, topic):
        waits = Waits()
        frame = bench.spark.readStream.format(kind).options(**options, **limits[name], startingOffsets="earliest")
        with _sending(bench, topic, [2], HIGH_PER_S), _running(frame.load(), waits) as query:
            full = _full(query, seconds=3 if bench.quick else 20)
        behind = [wait for number in full for wait in waits.seconds.get(number, [])]
        report.add(f"wait of high behind {backlog:,} low, p99", name, percentile(behind, 99) * 1000, "ms")
        report.add(f"wait of high behind {backlog:,} low, median", name, percentile(behind, 50) * 1000, "ms")
        report.add(f"micro-batch of {LIMIT:,}, median", name, statistics.median(full.values()), "ms")
        report.add(f"micro-batch of {LIMIT:,}, p99", name, percentile(list(full.values()), 99), "ms")
        if name == "headway":
            report.at_most("high-level p99 wait ÷ micro-batch time", percentile(_in_micro_batches(waits, full), 99), 2)


def _in_micro_batches(waits: "Waits", took: dict[int, float]) -> list[float]:
    """How many micro-batches each record waited, of the two that it met: it came in the first and is in the second."""
    return [
        wait * 1000 / statistics.mean((took[number - 1], took[number]))
        for number in took
        if number - 1 in took
        for wait in waits.seconds.get(number, [])
    ]


def schedule(report: Report, bench: Bench) -> None:
    """Rows a second into the lines of a scheduler, due over the next day; the best of the rounds."""
    count = 100_000 if bench.quick else 2_000_000
    target = level_topic(bench.topic("reminders", levels=1), 0)
    number = F.col("id").cast("string")
    rows = bench.spark.range(0, count, 1, SCHEDULING_TASKS).select(
        number.alias("key"),
        F.rpad(number, 100, "x").alias("value"),
        (F.current_timestamp() + F.make_dt_interval(secs=F.col("id") % 86_400)).alias("due"),
    )
    rows = rows.persist()
    rows.count()
    rates: dict[str, float] = {}
    for _ in range(1 if bench.quick else 2):
        for delivery in ("at_least_once", "exactly_once"):
            writer = rows.write.format("headway").mode("append").option("kafka.bootstrap.servers", bench.servers)
            began = time.perf_counter()
            writer.options(topic=target, delivery=delivery, schedulerName=f"lines-{uuid.uuid4().hex[:8]}").save()
            rates[delivery] = max(rates.get(delivery, 0.0), count / (time.perf_counter() - began))
    rows.unpersist()
    for delivery, rate in rates.items():
        report.add(f"{count:,} rows of 100 B scheduled", delivery, rate, "rows/s")
        report.at_least(f"scheduled rows/s, {delivery}", rate, 150_000)


class Waits:
    """A `foreachBatch` function that reads a whole micro-batch, and notes how long its high records waited."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}
        self._began = time.time()
        self._reading = threading.Lock()
        self._over = False

    def __call__(self, frame: DataFrame, number: int) -> None:
        with self._reading:
            if not self._over:
                self._read(frame, number)

    def end(self) -> None:
        """Read no more, so that the query is not stopped in the midst of it.

        Spark would look through the text of the error with a regular expression that overflows Java's stack.
        """
        with self._reading:
            self._over = True

    def _read(self, frame: DataFrame, number: int) -> None:
        # The connector has the level at the end of its topic's name only.
        level = F.col("level") if "level" in frame.columns else F.substring_index("topic", "-", -1).cast("int")
        rows = frame.where(level == LEVELS - 1).select(F.unix_millis("timestamp").alias("sent")).collect()
        now = time.time()
        self.seconds[number] = [now - row["sent"] / 1000 for row in rows if row["sent"] / 1000 > self._began]


def _systems(bench: Bench, topic: str) -> list[tuple[str, str, dict[str, str]]]:
    systems = [("headway", "headway", bench.ours(topic))]
    return [*systems, ("connector", "kafka", bench.theirs(topic))] if bench.connector else systems


@contextmanager
def _running(frame: DataFrame, waits: Waits | None = None, *, once: bool = False) -> Iterator[StreamingQuery]:
    writer = frame.writeStream.foreachBatch(waits) if waits else frame.writeStream.format("noop")
    writer = writer.trigger(availableNow=True) if once else writer
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            yield query
        finally:
            if waits:
                waits.end()
            query.stop()


def _times(query: StreamingQuery, seconds: float) -> list[float]:
    """What the micro-batches of the later half took in milliseconds."""
    progress = _after(query, seconds, lambda each: each["numInputRows"] > 0)
    return [each["durationMs"]["triggerExecution"] for each in progress[len(progress) // 2 :]]


def _full(query: StreamingQuery, seconds: float) -> dict[int, float]:
    """The milliseconds of the micro-batches that the backlog filled, by number; without the first third of them."""
    progress = _after(query, seconds, lambda each: each["numInputRows"] > 0.9 * LIMIT)
    return {each["batchId"]: each["durationMs"]["triggerExecution"] for each in progress[len(progress) // 3 :]}


def _after(query: StreamingQuery, seconds: float, counts: Callable[[Any], bool]) -> list[Any]:
    """The micro-batches that count, once the query has run for so long and has ended some of them."""
    began = time.monotonic()
    while True:
        assert query.isActive, query.exception()
        ran = time.monotonic() - began
        progress = [each for each in query.recentProgress if counts(each)]
        if ran > seconds and len(progress) >= FEWEST:
            return progress
        assert ran < seconds + PATIENCE, f"{len(progress)} micro-batches in {ran:.0f} s: {query.lastProgress}"
        time.sleep(0.1)


@contextmanager
def _sending(bench: Bench, topic: str, levels: Sequence[int], per_second: float) -> Iterator[None]:
    """Records to the levels in turn, from a thread; one of each is there when the block begins.

    A producer needs its time to connect, and a backlog can be read by then.
    """
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": bench.servers, "linger.ms": 1})
    for level in levels:
        producer.produce(level_topic(topic, level), b"x" * 100)
    assert producer.flush(60) == 0

    def send() -> None:
        number = 0
        while not stop.wait(1 / per_second):
            producer.produce(level_topic(topic, levels[number % len(levels)]), b"x" * 100)
            producer.poll(0)
            number += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.flush(30)


if __name__ == "__main__":
    main(QUESTION, measure)
