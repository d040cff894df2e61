"""Relays the follow-ups that the pipeline has scheduled, and audits them when the last one is due."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.streaming.query import StreamingQuery

from demo.evidence import Promise
from demo.flight_outputs import Outputs, follow_ups
from headway import Ladder, Relay
from headway.delay.topics import create_topics
from headway.spark.delay import audit, summary

NAME = "flights-delay"

_GIVE_UP_AFTER_S = 60.0  # after the last one arrived, or was due
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Audit:
    """The sums of an audit, and how many follow-ups fell due after they were stored: only those could be early."""

    totals: Row
    due_later: int

    def promises(self) -> list[Promise]:
        """Check that each arrived once, and not early. The lateness includes the wait until it was stored."""
        totals = self.totals
        once = totals["delivered"] + totals["early"]
        return [
            Promise("every follow-up of these once", f"{once:,} of {totals['ids']:,}", once == totals["ids"]),
            self._never_early(f"p50 {totals['late_p50']}, p99 {totals['late_p99']}"),
        ]

    def _never_early(self, late: str) -> Promise:
        promised = "none of them early (ms late)"
        if not self.totals["delivered"] + self.totals["early"]:
            return Promise(promised, "not shown: none came", None)
        if not self.due_later:
            return Promise(promised, f"not shown: due before their micro-batch ended; {late}", None)
        return Promise(promised, f"{late}; {self.due_later:,} were stored before", self.totals["early"] == 0)


def relay(servers: str) -> AbstractContextManager[Relay]:
    """Run a relay until the end of the block."""
    config = {"bootstrap.servers": servers}
    create_topics(config, NAME, Ladder.exponential(1, 2, 4), 2)
    return Relay(config, name=NAME).running()


def audited(
    spark: SparkSession,
    parquet: Path,
    outputs: Outputs,
    levels: int,
    stored: Sequence[datetime],
    say: Callable[[str], None],
) -> Audit:
    """Audit the follow-ups once all have arrived, or should have.

    `stored` says when each micro-batch that scheduled some was stored, in order.
    """
    handled = spark.read.parquet(str(parquet))
    later = follow_ups(handled, outputs.follow_up_after)
    scheduled = later.select(F.col("value").alias("id"), "due").cache()
    expected = scheduled.agg(F.count("*").alias("all"), F.max("due").alias("last")).collect()[0]
    # A DataFrame reads up to the ends that its topics had at its first use, so each check needs a new one.
    _wait(lambda: _delivered(spark, outputs, levels).count(), expected["all"], expected["last"], say)
    due_later = sum(
        follow_ups(handled.where(F.col("done").between(before, at)), outputs.follow_up_after)
        .where(F.col("due") > F.lit(at))
        .count()
        for before, at in pairwise([datetime.fromtimestamp(0, UTC), *stored])
    )
    return Audit(summary(audit(scheduled, _delivered(spark, outputs, levels))).collect()[0], due_later)


def stored(query: StreamingQuery) -> list[datetime]:
    """Return when each micro-batch of a query, with the schedules in it, was stored."""
    return [_ended(batch) for batch in query.recentProgress if batch["numInputRows"]]


def _ended(batch: Any) -> datetime:
    began = datetime.fromisoformat(batch["timestamp"])
    return began + timedelta(milliseconds=batch["durationMs"]["triggerExecution"])


def _wait(delivered: Callable[[], int], expected: int, last_due: datetime | None, say: Callable[[str], None]) -> None:
    came, heard = 0, max(time.time(), last_due.timestamp() if last_due else 0.0)
    while came < expected and time.time() < heard + _GIVE_UP_AFTER_S:
        say(f"{came:,} of {expected:,} follow-ups have come")
        time.sleep(_LOOK_EVERY_S)
        if (count := delivered()) > came:
            came, heard = count, max(heard, time.time())


def _delivered(spark: SparkSession, outputs: Outputs, levels: int) -> DataFrame:
    reader = spark.read.format("headway").options(subscribe=outputs.follow_ups, levels=levels)
    records = reader.option("kafka.bootstrap.servers", outputs.kafka["bootstrap.servers"]).load()
    return records.select(F.col("value").cast("string").alias("id"), F.col("timestamp").alias("delivered"))
