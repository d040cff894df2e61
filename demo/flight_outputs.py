"""The outputs of the flights pipeline: all records of a flight go to Kafka together, and from there to Parquet.

A handler that is called again may give another answer. So its answers are stored in one place, and everything else is
derived from the stored answers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from headway.core.levels.naming import level_topic
from headway.delay.topic_names import DEFAULT_NAME
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.topic_naming import TopicNaming
from headway.pipelines import Topics
from headway.settings.connection_settings import connection_of
from headway.spark.stage.output_records import Output, outputs

LATE_MINUTES = 60

HANDLED = (
    "carrier string, flight int, origin string, dest string, tailnum string, time_hour timestamp, "
    "dep_delay int, arr_delay int, distance int, "
    "visibility_miles double, wind_mph double, rain_inches double, destination string, lat double, lon double, "
    "plane_built int, plane_model string, plane_seats int, airline string, "
    "level int, partition int, offset long, produced_at timestamp, read_at timestamp, done_at timestamp, "
    "notice string, attempts int, done timestamp"
)
"""The columns of a handled flight, in its notice and in Parquet. Their times are in milliseconds."""

_OF_FOLLOW_UPS = ("carrier", "flight", "time_hour", "notice")
_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Outputs:
    """The targets of results: a directory, two topics with the levels of the flights, and one for dead letters.

    `kafka` is librdkafka's settings. A follow-up is delivered `follow_up_after` its flight was handled, if a relay of
    this scheduler is running (`headway relay`).
    """

    directory: str
    kafka: Mapping[str, Any] = field(repr=False)
    notices: str = "flight-notices"
    follow_ups: str = "flight-follow-ups"
    dead_letters: str = "flight-dead"
    follow_up_after: timedelta = timedelta(hours=1)
    scheduler_name: str = DEFAULT_NAME

    @property
    def sink_options(self) -> dict[str, str]:
        """The options of `format("headway")` for writing."""
        kafka = {f"kafka.{name}": value for name, value in connection_of(self.kafka).items()}
        return {**kafka, "schedulerName": self.scheduler_name}

    def create_topics(self, like: Topics, levels: int) -> None:
        """Create missing topics, each with as many partitions as the topics `like` have at its level.

        Brokers set the timestamps of follow-ups, which therefore show the time of delivery. Raises `KafkaError`, and
        creates nothing, if a level of `like` does not exist.
        """
        catalog = Catalog(connection_of(self.kafka))
        names = [like] if isinstance(like, str) else list(like)
        naming = TopicNaming(None, like) if isinstance(like, Mapping) else TopicNaming(levels)
        found = Counter((at.topic, at.level) for at in catalog.find(names, naming).partitions)
        existing = catalog.topics()
        for level in range(levels):
            partitions = max((count for (_, own), count in found.items() if own == level), default=max(found.values()))
            for name, settings in ((self.notices, {}), (self.follow_ups, _BROKERS_TIME)):
                if (topic := level_topic(name, level)) not in existing:
                    catalog.create([topic], partitions, config=settings)
        if self.dead_letters not in existing:
            catalog.create([self.dead_letters], max(found.values()))


def to_send(handled: DataFrame, to: Outputs) -> DataFrame:
    """Return the records to send for these flights: a notice and perhaps a follow-up, or a dead letter."""
    due = _later("done", to.follow_up_after)
    notice = Output(to.notices, key="tailnum", level="level", value=_json(*_names(HANDLED)))
    follow_up = Output(
        to.follow_ups,
        key="tailnum",
        level="level",
        value=_json(*_OF_FOLLOW_UPS),
        due=due,
        where=f"arr_delay > {LATE_MINUTES}",
    )
    return outputs(handled, notice, follow_up, dead_letter_topic=to.dead_letters)


def from_notices(records: DataFrame) -> DataFrame:
    """Return the handled flights in the notices in Kafka."""
    return records.select(F.from_json(F.col("value").cast("string"), HANDLED).alias("flight")).select("flight.*")


def follow_ups(handled: DataFrame, after: timedelta) -> DataFrame:
    """Return `value` and `due` of the follow-ups of these flights, as `to_send` schedules them."""
    late = handled.where(f"arr_delay > {LATE_MINUTES}")
    return late.select(_json(*_OF_FOLLOW_UPS).alias("value"), _later("done", after).alias("due"))


def _json(*names: str) -> Column:
    return F.to_json(F.struct(*names))


def _later(time: str, after: timedelta) -> Column:
    return F.timestamp_millis(F.unix_millis(time) + round(after.total_seconds() * 1000))


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(", ")]
