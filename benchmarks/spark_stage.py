"""How many calls a second does the parallel stage make, in which order, and how many rows a second does the sink write?

(a) Calls of 10 ms, thousands of them at a time, beside what one does without it: mapInPandas with a call after the
other, mapInPandas with all calls of a batch at a time, and Spark's own threads for Arrow UDFs. A violation is a row
that is handled before or beside one of its key that came first. (b) Rows of 100 bytes to a topic of 4 partitions in
both modes of delivery, beside Spark's own connector where its jars can be had.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from _connector import spark_settings
from _harness import Options, Report, main
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headway.kafka.admin import Admin
from headway.spark import local_session, parallel_map

QUESTION = "The parallel stage and the sink, beside what Spark has"
CALL = 0.01  # seconds
KEYS = 20_000
CONCURRENCY = 1_000
PARTITIONS = 4
THREADS = 100  # of an Arrow UDF: more than that slow it down


class Watch:
    """Notes which rows of which key are handled, and counts those that come too early; one for each Python worker."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._running: set[int] = set()

    def begins(self, key: int, number: int) -> int:
        """1 if the row is out of order."""
        violation = key in self._running or number < self._last.get(key, -1)
        self._running.add(key)
        self._last[key] = number
        return int(violation)

    def ends(self, key: int) -> None:
        """The row is done."""
        self._running.discard(key)


class Call:
    """A handler that waits as for a service."""

    def __init__(self) -> None:
        self._watch = Watch()

    async def __call__(self, row: Any, context: Any) -> int:
        violation = self._watch.begins(row.key, row.number)
        await asyncio.sleep(CALL)
        self._watch.ends(row.key)
        return violation


def one_after_the_other(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """What mapInPandas does by itself."""
    watch = Watch()
    for batch in batches:
        violations = []
        for key, number in zip(batch["key"], batch["number"], strict=True):
            violations.append(watch.begins(key, number))
            time.sleep(CALL)
            watch.ends(key)
        yield pd.DataFrame({"violation": violations})


def batch_at_a_time(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """What one writes into mapInPandas: so many calls at a time, without an order."""
    watch = Watch()
    slots = asyncio.Semaphore(CONCURRENCY)

    async def call(key: int, number: int) -> int:
        async with slots:
            violation = watch.begins(key, number)
            await asyncio.sleep(CALL)
            watch.ends(key)
            return violation

    async def calls(batch: pd.DataFrame) -> list[int]:
        return await asyncio.gather(*map(call, batch["key"], batch["number"]))

    with asyncio.Runner() as runner:
        for batch in batches:
            yield pd.DataFrame({"violation": runner.run(calls(batch))})


def arrow_udf() -> Any:
    """A Python UDF for one row, which Spark runs on threads."""
    watch = Watch()

    @sf.udf("int", useArrow=True)
    def call(key: int, number: int) -> int:
        violation = watch.begins(key, number)
        time.sleep(CALL)
        watch.ends(key)
        return violation

    return call


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows of many keys; each of 30 comes again after 600 rows, which is before as many calls have ended."""
    key = sf.when(sf.col("id") % 20 == 0, sf.col("id") % 600).otherwise(600 + sf.col("id") % KEYS)
    tasks = os.cpu_count() or 1
    return spark.range(0, count, 1, tasks).select(key.alias("key"), sf.col("id").alias("number"))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """How many seconds it took, and what it gave."""
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def violations(frame: DataFrame) -> int:
    """Run it, and count."""
    return int(frame.agg(sf.sum("violation")).collect()[0][0] or 0)


def measure_stage(report: Report, spark: SparkSession, *, quick: bool) -> None:
    """(a) Calls a second and violations of the order."""
    many, few = (120_000, 100) if quick else (600_000, 400)
    case = f"calls of {CALL * 1000:g} ms"

    def parallel(count: int) -> DataFrame:
        outcomes = parallel_map(rows(spark, count), Call(), "int", key="key", max_concurrency=CONCURRENCY)
        return outcomes.select(sf.col("result").alias("violation"))

    systems: dict[str, tuple[int, Callable[[int], DataFrame]]] = {
        "parallel_map": (many, parallel),
        "mapInPandas": (few, lambda count: rows(spark, count).mapInPandas(one_after_the_other, "violation int")),
        "mapInPandas, batch at a time": (
            many,
            lambda count: rows(spark, count).mapInPandas(batch_at_a_time, "violation int"),
        ),
        f"Arrow UDF, {THREADS} threads": (
            few * 100,
            lambda count: rows(spark, count).select(arrow_udf()("key", "number").alias("violation")),
        ),
    }
    spark.conf.set("spark.sql.execution.pythonUDF.arrow.concurrency.level", str(THREADS))
    violations(parallel(1_000))  # Python workers and code are warm from here on
    for system, (count, make) in systems.items():
        seconds, wrong = timed(partial(violations, make(count)))
        rate = report.add(case, system, count / seconds, "calls/s")
        report.add(case, system, wrong, f"violations in {count:,}")
        if system == "parallel_map":
            report.at_least("parallel_map, calls/s", rate, 50_000)
            report.at_most("parallel_map, violations of the order", wrong, 0)


def measure_sink(report: Report, spark: SparkSession, servers: str, *, quick: bool, connector: bool) -> None:
    """(b) Rows a second into a topic."""
    count = 300_000 if quick else 2_000_000
    number = sf.col("id").cast("string")
    tasks = os.cpu_count() or 1
    frame = spark.range(0, count, 1, tasks).select(number.alias("key"), sf.rpad(number, 100, "x").alias("value"))
    frame = frame.persist()
    frame.count()
    admin = Admin({"bootstrap.servers": servers})

    def write(sink: str, options: dict[str, str]) -> None:
        topic = f"sink-{uuid.uuid4().hex[:8]}"
        admin.create([topic], PARTITIONS)
        writer = frame.write.format(sink).mode("append").option("kafka.bootstrap.servers", servers)
        writer.option("topic", topic).options(**options).save()

    systems: dict[str, tuple[str, dict[str, str]]] = {
        "headway, at least once": ("headway", {"delivery": "at_least_once"}),
        "headway, exactly once": ("headway", {"delivery": "exactly_once"}),
        **({"Spark's connector": ("kafka", {})} if connector else {}),
    }
    rates: dict[str, float] = {}
    for _ in range(2):  # the second time with all that is compiled by then
        for system, arguments in systems.items():
            seconds, _ = timed(partial(write, *arguments))
            rates[system] = max(rates.get(system, 0.0), count / seconds)
    for system, rate in rates.items():
        report.add("rows of 100 B", system, rate, "rows/s")
    if connector:
        for system, least in (("headway, at least once", 0.7), ("headway, exactly once", 0.5)):
            report.at_least(f"{system}: of the connector's", rates[system] / rates["Spark's connector"], least)


def measure(report: Report, options: Options) -> None:
    """Both questions, in one session."""
    jars = spark_settings()
    settings = {"spark.python.unix.domain.socket.enabled": "true", **jars}
    with options.broker() as servers:
        spark = local_session("headway benchmark", settings)
        measure_stage(report, spark, quick=options.quick)
        measure_sink(report, spark, servers, quick=options.quick, connector=bool(jars))
        spark.stop()


if __name__ == "__main__":
    main(QUESTION, measure)
