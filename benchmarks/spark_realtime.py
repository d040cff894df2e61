"""How soon is a record from Kafka back in Kafka: by micro-batches, by workers, and by Spark's Real-Time Mode?

In the shape of Spark's own benchmark: 5 partitions, 1,000 records/s, Kafka to Kafka, the warm-up dropped, counts
checked. For all systems alike the time is that from the call that sends a record to its output's arrival at a consumer
with `isolation.level=read_committed`. Real-Time Mode needs a core for each partition, so the session has slots for
all; where the machine has fewer cores they share them.
"""

import os
import statistics
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from _connector import spark_settings
from _harness import Options, Report, main, percentile, ratio
from pyspark.sql import SparkSession

from headway.kafka.admin import Admin
from headway.spark import local_session, run_workers

QUESTION = "From a record's send to its output's arrival, Kafka to Kafka at 1,000 records/s"
PARTITIONS, PER_S, SIZE = 5, 1_000, 100
SLOTS = PARTITIONS + 1
WORKERS = 2
SOON = {"auto.commit.interval.ms": 10}
PATIENCE = 240.0  # seconds for a system to start, and for what was sent to arrive
MICRO_BATCHES, CONNECTOR, REAL_TIME = "headway", "connector", "connector, real time"
HEADWAY_WORKERS, SOON_WORKERS = "workers", "workers, a commit every 10 ms"
EXACTLY_ONCE = {MICRO_BATCHES, HEADWAY_WORKERS, SOON_WORKERS}
Running = Callable[[str, str], AbstractContextManager[None]]


@dataclass(slots=True)
class Bench:
    """A session, a broker, and the systems: each takes a topic with records to a topic for its outputs."""

    spark: SparkSession
    servers: str
    workers_topics: tuple[str, str]
    admin: Admin = field(init=False)

    def __post_init__(self) -> None:
        self.admin = Admin({"bootstrap.servers": self.servers})
        self.admin.create(self.workers_topics, PARTITIONS)

    def topics(self, system: str) -> tuple[str, str]:
        """The workers' topics, which are declared with them; for a query new ones, since it has a new checkpoint."""
        if system in (HEADWAY_WORKERS, SOON_WORKERS):
            return self.workers_topics
        names = f"in-{uuid.uuid4().hex[:8]}", f"out-{uuid.uuid4().hex[:8]}"
        self.admin.create(names, PARTITIONS)
        return names

    def systems(self, *, connector: bool) -> dict[str, Running]:
        """What is measured, in turns."""
        ours: dict[str, Running] = {
            MICRO_BATCHES: lambda source, target: self._query("headway", source, target),
            HEADWAY_WORKERS: lambda *_: self._workers({}),
            SOON_WORKERS: lambda *_: self._workers(SOON),
        }
        theirs: dict[str, Running] = {
            CONNECTOR: lambda source, target: self._query("kafka", source, target),
            REAL_TIME: lambda source, target: self._query("kafka", source, target, realTime="5 minutes"),
        }
        return ours | theirs if connector else ours

    @contextmanager
    def _query(self, kind: str, source: str, target: str, **trigger: Any) -> Iterator[None]:
        reader = self.spark.readStream.format(kind).option("kafka.bootstrap.servers", self.servers)
        frame = reader.options(subscribe=source, startingOffsets="earliest").load().select("key", "value")
        writer = frame.writeStream.format(kind).option("kafka.bootstrap.servers", self.servers).option("topic", target)
        if trigger:
            writer = writer.trigger(**trigger).outputMode("update")
        with tempfile.TemporaryDirectory() as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                yield
                assert query.isActive, query.exception()
            finally:
                query.stop()

    @contextmanager
    def _workers(self, config: dict[str, Any]) -> Iterator[None]:
        given = {"bootstrap.servers": self.servers, **config}
        with run_workers(self.spark, "_realtime_relay:pass_on", WORKERS, given):
            yield


class Outputs:
    """A consumer of a topic in a thread of its own, which notes how long each record took, by its number."""

    def __init__(self, servers: str, topic: str, run: bytes) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "outputs", "isolation.level": "read_committed"}
        self._consumer = ck.Consumer({**settings, "log_level": 0})
        self._consumer.assign([ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in range(PARTITIONS)])
        self._run = run
        self.came: Counter[int] = Counter()
        self.took: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, 0.1):
                if message.error():  # as that a new topic has no leader yet, which the client tries again
                    continue
                run, number, sent, *_ = (message.value() or b"").split()
                if run == self._run:
                    self.came[int(number)] += 1
                    self.took.setdefault(int(number), time.time() * 1000 - int(sent) / 1e6)

    def wait_for(self, count: int, within: float) -> None:
        """Wait until so many records came."""
        deadline = time.monotonic() + within
        while len(self.came) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(self.came) >= count, f"{len(self.came)} of {count} records came within {within:g} s"

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


class Inputs:
    """A sender of numbered records, each with the time at which it was sent."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = ck.Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._topic = topic
        self.run = uuid.uuid4().hex.encode()
        self.sent = 0

    def send(self, count: int, per_second: float) -> None:
        """Send so many records at an even pace, to the partitions in turn."""
        began, first = time.monotonic(), self.sent
        while self.sent < first + count:
            if (early := (self.sent - first) / per_second - (time.monotonic() - began)) > 0:
                time.sleep(early)
            value = b"%s %d %d " % (self.run, self.sent, time.time_ns())
            self._producer.produce(self._topic, value.ljust(SIZE, b"x"), partition=self.sent % PARTITIONS)
            self._producer.poll(0)
            self.sent += 1
        assert self._producer.flush(60) == 0


def measure(report: Report, options: Options) -> None:
    """Each system in turn, in several rounds, of which the first warms up Java."""
    rounds, warm_up, seconds = (1, 4, 6) if options.quick else (3, 6, 20)
    settings = {**spark_settings(), "spark.submit.pyFiles": str(Path(__file__).with_name("_realtime_relay.py"))}
    name = uuid.uuid4().hex[:8]
    topics = f"workers-in-{name}", f"workers-out-{name}"
    # Tasks get the environment of this process by way of Java, so this comes before both.
    os.environ["HEADWAY_REALTIME_SOURCE"], os.environ["HEADWAY_REALTIME_TARGET"] = topics
    with options.broker() as servers:
        spark = local_session("headway benchmark", settings, master=f"local[{SLOTS}]")
        try:
            bench = Bench(spark, servers, topics)
            systems = bench.systems(connector="spark.jars" in settings)
            took = [
                {system: _through(bench, system, run, warm_up, seconds) for system, run in systems.items()}
                for _ in range(rounds)
            ]
        finally:
            spark.stop()
    _tell(report, took if options.quick else took[1:])


def _through(bench: Bench, system: str, run: Running, warm_up: int, seconds: int) -> list[float]:
    """Return the milliseconds that the records took which were sent after the warm-up."""
    source, target = bench.topics(system)
    inputs = Inputs(bench.servers, source)
    with Outputs(bench.servers, target, inputs.run) as outputs, run(source, target):
        inputs.send(PARTITIONS, PER_S)
        outputs.wait_for(inputs.sent, PATIENCE)
        inputs.send(warm_up * PER_S, PER_S)
        first = inputs.sent
        inputs.send(seconds * PER_S, PER_S)
        outputs.wait_for(inputs.sent, PATIENCE)
        time.sleep(0.5)  # what is doubled may come later
    doubled = outputs.came.total() - len(outputs.came)
    print(f"{system}: {inputs.sent:,} records sent, {len(outputs.came):,} came, {doubled:,} of them again")
    assert len(outputs.came) == inputs.sent
    assert not (doubled and system in EXACTLY_ONCE)
    return [outputs.took[number] for number in range(first, inputs.sent)]


def _tell(report: Report, rounds: list[dict[str, list[float]]]) -> None:
    """The medians of the rounds' figures; ratios are of figures in one round."""
    for percent in (50, 99):
        figures = [{system: percentile(took, percent) for system, took in each.items()} for each in rounds]
        for system in figures[0]:
            value = statistics.median(each[system] for each in figures)
            report.add(f"send to arrival, p{percent}", system, value, "ms")
        if CONNECTOR not in figures[0]:
            continue
        of_connector = statistics.median(ratio(each[MICRO_BATCHES], each[CONNECTOR]) for each in figures)
        report.at_most(f"micro-batches ÷ connector's, p{percent}", of_connector, 0.6)
        if percent == 99:
            for workers in (HEADWAY_WORKERS, SOON_WORKERS):
                of_real_time = statistics.median(ratio(each[workers], each[REAL_TIME]) for each in figures)
                report.at_most(f"{workers} ÷ Real-Time Mode, p99", of_real_time, 1.0)


if __name__ == "__main__":
    main(QUESTION, measure)
