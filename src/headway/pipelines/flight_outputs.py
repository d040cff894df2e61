"""What the flights pipeline writes: Parquet, a notice of each flight at its level, and follow-ups for later."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it

from headway.core.topics import level_topic
from headway.delay.topics import DEFAULT_NAME
from headway.kafka.catalog import Catalog
from headway.letters import connection_of

LATE_MINUTES = 60

_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go: a directory, and two topics that have the levels of the flights. `kafka` is librdkafka's.

    Follow-ups come so long after their flight was handled, if a relay of this scheduler runs (`headway relay`).
    """

    directory: str
    kafka: Mapping[str, Any] = field(repr=False)
    notices: str = "flight-notices"
    follow_ups: str = "flight-follow-ups"
    follow_up_after: timedelta = timedelta(hours=1)
    scheduler_name: str = DEFAULT_NAME

    def create_topics(self, like: str, levels: int) -> None:
        """Create the level topics that are not there, each with as many partitions as that of the topic `like`.

        Brokers stamp the follow-ups, which so say when they were delivered. Raises `KafkaError`, and creates none, when
        a level of `like` does not exist.
        """
        catalog = Catalog(connection_of(self.kafka))
        catalog.find([like], levels)
        existing = catalog.topics()
        for level in range(levels):
            partitions = existing[level_topic(like, level)]
            for name, settings in ((self.notices, {}), (self.follow_ups, _BROKERS_TIME)):
                if (topic := level_topic(name, level)) not in existing:
                    catalog.create([topic], partitions, config=settings)

    def write(self, handled: DataFrame, batch: int) -> None:
        """A function for `foreachBatch`: what is there of a micro-batch already is replaced, or not written again."""
        handled = handled.persist()  # so that handlers run once
        try:
            handled.write.mode("overwrite").parquet(f"{self.directory}/flights/batch={batch}")
            self._send(to_send(handled, self), batch)
        finally:
            handled.unpersist()

    def _send(self, records: DataFrame, batch: int) -> None:
        # Of the checkpoint, and so a new one when that is deleted and micro-batches count from 0 again.
        query = records.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        writer = records.write.format("headway").mode("append")
        writer = writer.options(**{f"kafka.{name}": value for name, value in connection_of(self.kafka).items()})
        writer.options(schedulerName=self.scheduler_name, txnAppId=f"flights-{query}", txnVersion=batch).save()


def to_send(handled: DataFrame, outputs: Outputs) -> DataFrame:
    """All records of these flights: of a task, notices and follow-ups are written once or not at all."""
    later = follow_ups(handled, outputs.follow_ups, outputs.follow_up_after)
    return notices(handled, outputs.notices).unionByName(later)


def notices(handled: DataFrame, topic: str) -> DataFrame:
    """A record for each flight that was handled, at the level of the flight."""
    return _records(handled.where("outcome = 'ok'"), topic, F.lit(None).cast("timestamp"))


def follow_ups(handled: DataFrame, topic: str, after: timedelta) -> DataFrame:
    """A record for each flight that was handled and arrived more than an hour late, due so long after that."""
    late = handled.where(f"outcome = 'ok' and arr_delay > {LATE_MINUTES}")
    due = F.timestamp_millis(F.unix_millis("done") + round(after.total_seconds() * 1000))
    return _records(late, topic, due)


def _records(handled: DataFrame, topic: str, due: Column) -> DataFrame:
    value = F.to_json(F.struct("carrier", "flight", "time_hour", "notice"))
    place = F.lit(topic).alias("topic"), F.col("level"), F.col("tailnum").alias("key")
    return handled.select(*place, value.alias("value"), due.alias("due"))
