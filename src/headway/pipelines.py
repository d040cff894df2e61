"""A run of a Spark pipeline: its session, its source, and the queries that it starts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headway.settings.connection_settings import connection_of

__all__ = ["PipelineRun"]

Topics = str | Sequence[str] | Mapping[str, int]


@dataclass(slots=True)
class PipelineRun:
    """The parameters of a run, as `headway pipeline run package.module:pipeline` passes them to the pipeline.

    Args:
        spark: The Spark session.
        kafka: librdkafka's settings.
        topics: The topics to read. To read existing topics without levels, pass a mapping from each topic to the level
            that its records get.
        levels: The number of levels.
        directory: The directory for checkpoints and results.
        once: True if each query ends when it has read the records that exist now. Otherwise queries run until they are
            stopped.
        options: The pipeline's own options, from `--set name=value`.
        results_name: The name of the subdirectory for results.
    """

    spark: SparkSession
    kafka: Mapping[str, Any] = field(repr=False)  # can contain passwords
    topics: Topics
    levels: int
    directory: str
    once: bool = True
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    results_name: str = "results"
    kept: bool = False
    _queries: list[StreamingQuery] = field(default_factory=list, init=False, repr=False)

    @property
    def results(self) -> str:
        """The directory of the results, from which the report is made."""
        return f"{self.directory}/{self.results_name}"

    @property
    def sink_options(self) -> dict[str, str]:
        """The options that connect `format("headway")` to this run's Kafka when a query writes."""
        return {f"kafka.{name}": str(value) for name, value in connection_of(self.kafka).items()}

    def source(self, topics: Topics | None = None, **options: Any) -> DataFrame:
        """Return a stream of the records of the topics by priority, beginning with the first stored record.

        By default the stream reads the topics of the run. Other `topics` must have the same number of levels. `options`
        are options of `format("headway")`, which override the options that this method sets.
        """
        topics = self.topics if topics is None else topics
        kafka = self.kafka if topics is self.topics else connection_of(self.kafka)
        return source(self.spark, kafka, topics, self.levels, **options)

    def start(self, writer: DataStreamWriter, name: str) -> StreamingQuery:
        """Start a query with a checkpoint of this name.

        If the run is `once`, wait for the query to end, so that the next query reads everything that it has written.
        """
        query = triggered(writer.option("checkpointLocation", f"{self.directory}/checkpoint/{name}"), self.once).start()
        self._queries.append(query)
        if self.once:
            query.awaitTermination()
        return query

    def keep(self, rows: DataFrame, name: str = "kept") -> StreamingQuery:
        """Start a query that stores rows as Parquet for the report. If the run is `once`, wait for the query to end.

        The report needs the columns `level`, `produced_at`, `read_at` and `done_at`; `stamped` creates the last two. If
        Spark repeats a micro-batch, the new files replace those of the first run.
        """
        self.kept = True
        return self.start(rows.writeStream.foreachBatch(parquet_writer(self.results)), name)

    def wait(self) -> None:
        """Wait until any query ends, then stop all queries. Raises the error of a query that failed."""
        try:
            if not self.once and self._queries:
                self.spark.streams.awaitAnyTermination()
        finally:
            for query in self._queries:
                query.stop()


Pipeline = Callable[[PipelineRun], Any]
"""A function that the user wrote to start the queries of a pipeline. It is called with the run."""


def source(spark: SparkSession, kafka: Mapping[str, Any], topics: Topics, levels: int, **options: Any) -> DataFrame:
    """Return a stream of the records of all levels, beginning with the first stored record.

    `kafka` has librdkafka's settings.
    """
    if isinstance(topics, Mapping):
        chosen: dict[str, Any] = {"priorities": json.dumps(dict(topics))}
    else:
        chosen = {"subscribe": topics if isinstance(topics, str) else ",".join(topics), "levels": levels}
    return (
        spark.readStream.format("headway")
        .options(**{f"kafka.{name}": value for name, value in kafka.items()})
        .options(**{**chosen, "startingOffsets": "earliest", "maxRecordsPerTrigger": 100_000, **options})
        .load()
    )


def triggered(writer: DataStreamWriter, once: bool) -> DataStreamWriter:
    """Set the trigger of a query: once, for the records that exist now, or every second."""
    return writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")


def parquet_writer(directory: str) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes a micro-batch as Parquet and replaces its earlier files."""

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{directory}/batch={batch}")

    return write
