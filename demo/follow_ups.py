"""The follow-ups that the pipeline has scheduled: relayed while it runs, and audited when the last is due."""

import time
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

from demo.evidence import Promise
from headway import Ladder, Relay
from headway.delay.topics import create_topics
from headway.pipelines.flight_outputs import Outputs, follow_ups
from headway.spark.delay import audit, summary

NAME = "flights-delay"
AFTER = timedelta(seconds=5)

_GIVE_UP_AFTER_S = 90.0
_LOOK_EVERY_S = 0.5


def relay(servers: str) -> AbstractContextManager[Relay]:
    """A relay, beside whatever else runs."""
    config = {"bootstrap.servers": servers}
    create_topics(config, NAME, Ladder.exponential(1, 2, 4), 2)
    return Relay(config, name=NAME).running()


def audited(spark: SparkSession, parquet: Path, outputs: Outputs, levels: int) -> Row:
    """What `headway.spark.delay.summary` says of the follow-ups, once all have come or should have."""
    later = follow_ups(spark.read.parquet(str(parquet)), outputs.follow_up_after)
    scheduled = later.select(F.col("value").alias("id"), "due").cache()
    delivered = _delivered(spark, outputs, levels)
    expected, deadline = scheduled.count(), time.monotonic() + _GIVE_UP_AFTER_S
    while delivered.count() < expected and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return summary(audit(scheduled, delivered)).collect()[0]


def promise(totals: Row) -> Promise:
    """That each came once, and how late: a micro-batch stores what it schedules when it is committed, not before."""
    seen = (
        f"{totals['delivered']:,} of {totals['ids']:,} follow-ups, p50 {totals['late_p50']} and "
        f"p99 {totals['late_p99']} ms late, as they are stored when their micro-batch is committed"
    )
    return Promise("an audit finds none lost, doubled or early", seen, totals["delivered"] == totals["ids"])


def _delivered(spark: SparkSession, outputs: Outputs, levels: int) -> DataFrame:
    reader = spark.read.format("headway").options(subscribe=outputs.follow_ups, levels=levels)
    records = reader.option("kafka.bootstrap.servers", outputs.kafka["bootstrap.servers"]).load()
    return records.select(F.col("value").cast("string").alias("id"), F.col("timestamp").alias("delivered"))
