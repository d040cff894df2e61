"""Runs the flights through the demo's pipeline, and checks the results."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from matplotlib.figure import Figure
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from demo import flights_pipeline, follow_ups
from demo.flight_outputs import Outputs
from headway.spark import local_session
from headway.spark.report.file import write_report

IDENTITY = ("carrier", "flight", "time_hour")
TOP = 12
_LOOK_EVERY_S = 1
_STARTS = 5
_NO_WORKER = "Python worker failed to connect back"


Say = Callable[[str], None]  # shows the current activity


@dataclass(frozen=True, slots=True)
class Outcome:
    """What arrived, and the seconds for reading, joining, handling and writing it back to Kafka."""

    expected: int
    rows: int
    distinct: int
    notices: int
    by_level: bool
    micro_batches: int
    streaming_s: float
    stored: list[datetime]
    parquet: Path
    plot: Path

    @property
    def each_once(self) -> bool:
        """True if every flight arrived exactly once."""
        return self.rows == self.distinct == self.expected

    @property
    def each_noticed_once(self) -> bool:
        """Whether there is one notice of every flight, at its level."""
        return self.by_level and self.notices == self.expected


def session() -> SparkSession:
    """Spark for the demo, which takes seconds to start."""
    return local_session("headway demo", short_lived=True)


def run(
    spark: SparkSession,
    servers: str,
    topic: str,
    levels: int,
    expected: int,
    at_once: int,
    after: timedelta,
    output_dir: Path,
    console: Console,
    say: Say,
) -> tuple[Outcome, follow_ups.Audit]:
    """Read the flights of a topic through Structured Streaming, say what they show, draw it, and audit follow-ups.

    `expected` is how many flights were sent, `at_once` how many a micro-batch reads; `after` is how long after their
    handling follow-ups are due; `say` is told how far it is. What an earlier run left in the directory is replaced.
    Stops Spark.
    """
    try:
        kafka = {"bootstrap.servers": servers}
        records = flights_pipeline.source(spark, kafka, topic, levels, maxRecordsPerTrigger=at_once)
        outputs = Outputs(str(output_dir), kafka, follow_up_after=after, scheduler_name=follow_ups.NAME)
        outputs.create_topics(topic, levels)
        with follow_ups.relay(servers):
            outcome = process(spark, records, outputs, levels, expected, console, say)
            return outcome, follow_ups.audited(spark, outcome.parquet, outputs, levels, outcome.stored, say)
    finally:
        spark.stop()


def delay_by_destination_and_level(flights: DataFrame) -> DataFrame:
    """Per destination the number of flights and the mean arrival delay in minutes, in all and by level; most first."""
    by_level = flights.groupBy("dest", "level").agg(
        F.count("*").alias("flights"), F.sum("arr_delay").alias("minutes"), F.count("arr_delay").alias("arrived")
    )
    delay = F.sum("minutes") / F.nullif(F.sum("arrived"), F.lit(0))
    levels = F.map_from_entries(F.collect_list(F.struct("level", F.try_divide("minutes", "arrived"))))
    return (
        by_level.groupBy("dest")
        .agg(F.sum("flights").alias("flights"), delay.alias("delay"), levels.alias("delay_by_level"))
        .orderBy(F.desc("flights"), "dest")
    )


def delay_by_visibility(flights: DataFrame) -> DataFrame:
    """The mean departure delay in minutes by visibility in whole miles."""
    return (
        flights.where("visibility_miles is not null and dep_delay is not null")
        .groupBy(F.floor("visibility_miles").alias("miles"))
        .agg(F.avg("dep_delay").alias("delay"))
        .orderBy("miles")
    )


def arrivals(flights: DataFrame) -> DataFrame:
    """One row: how many flights there are, and how many different ones."""
    return flights.agg(F.count("*").alias("rows"), F.count_distinct(*IDENTITY).alias("distinct"))


def notices_by_level(spark: SparkSession, outputs: Outputs, levels: int) -> dict[int, int]:
    """How many notices there are in Kafka by level; less than none where one is there twice."""
    notices = spark.read.format("headway").options(subscribe=outputs.notices, levels=levels)
    servers = outputs.kafka["bootstrap.servers"]
    counts = F.count("*").alias("rows"), F.count_distinct("value").alias("distinct")
    rows = notices.option("kafka.bootstrap.servers", servers).load().groupBy("level").agg(*counts).collect()
    return {row["level"]: row["distinct"] if row["rows"] == row["distinct"] else -1 for row in rows}


def process(
    spark: SparkSession,
    records: DataFrame,
    outputs: Outputs,
    levels: int,
    expected: int,
    console: Console,
    say: Say = lambda _: None,
) -> Outcome:
    """Join, handle, write, report, sum up, draw."""
    output_dir = Path(outputs.directory)
    parquet = output_dir / "flights"
    for directory in (parquet, output_dir / "checkpoint"):
        shutil.rmtree(directory, ignore_errors=True)
    tables = flights_pipeline.read_tables(spark)
    started = time.monotonic()

    def say_how_far(query: StreamingQuery) -> None:
        done = sum(batch["numInputRows"] for batch in query.recentProgress)
        say(f"{done:,} of {expected:,} flights are through Spark")

    query = _to_its_end(lambda: flights_pipeline.start(records, tables, outputs), say_how_far)
    streaming_s, stored = time.monotonic() - started, follow_ups.stored(query)
    say("The flights of the notices are kept")
    _to_its_end(
        lambda: flights_pipeline.keep(spark, outputs, levels), lambda _: say("The flights of the notices are kept")
    )
    say("The report is made")
    write_report(spark, str(parquet), output_dir / "report.html", title="The flights by priority")

    say("Flights and notices are counted")
    arrived = spark.read.parquet(str(parquet))
    counts = arrivals(arrived).first() or Row(rows=0, distinct=0)
    noticed = notices_by_level(spark, outputs, levels)
    in_parquet = {row["level"]: row["count"] for row in arrived.groupBy("level").count().collect()}
    destinations = delay_by_destination_and_level(arrived).limit(TOP).collect()
    console.print(_delay_table(destinations))
    plot = _draw(destinations, delay_by_visibility(arrived).collect(), output_dir / "delays.png")
    return Outcome(
        expected=expected,
        rows=counts["rows"],
        distinct=counts["distinct"],
        notices=sum(noticed.values()),
        by_level=noticed == in_parquet,
        micro_batches=len(stored),
        streaming_s=streaming_s,
        stored=stored,
        parquet=parquet,
        plot=plot,
    )


def _to_its_end(start: Callable[[], StreamingQuery], look: Callable[[StreamingQuery], None]) -> StreamingQuery:
    """Run a query, and start it once more where Spark's 10 s for a Python worker to come up were too few."""
    for starts_left in reversed(range(_STARTS)):
        query = start()
        try:
            while not query.awaitTermination(_LOOK_EVERY_S):
                look(query)
        except StreamingQueryException as error:
            if _NO_WORKER not in str(error) or not starts_left:
                raise
        else:
            return query
    raise AssertionError("the last start returns or raises")


def _delay_table(destinations: list[Row]) -> Table:
    levels = sorted({level for row in destinations for level in row["delay_by_level"]})
    title = f"Mean arrival delay in minutes, {len(destinations)} most frequent destinations"
    table = Table(title=title, title_justify="left")
    for name in ("destination", "flights", *(f"level {level}" for level in levels), "all"):
        table.add_column(name, justify="left" if name == "destination" else "right")
    for row in destinations:
        delays = [row["delay_by_level"].get(level) for level in levels]
        table.add_row(row["dest"], f"{row['flights']:,}", *map(_minutes, [*delays, row["delay"]]))
    return table


def _minutes(delay: float | None) -> str:
    return "–" if delay is None else f"{delay:.1f}"


def _draw(destinations: list[Row], visibility: list[Row], path: Path) -> Path:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, permission = figure.subplots(1, 2)
    known = [row for row in reversed(destinations) if row["delay"] is not None]
    left.barh([row["dest"] for row in known], [row["delay"] for row in known])
    left.set(title="Mean arrival delay, most frequent destinations", xlabel="minutes")
    permission.bar([row["miles"] for row in visibility], [row["delay"] for row in visibility])
    permission.set(title="Mean departure delay by visibility", xlabel="miles", ylabel="minutes")
    figure.savefig(path, dpi=120)
    return path
