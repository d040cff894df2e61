"""The reader of `spark.readStream.format("headway")`, which reads micro-batches by priority.

`latestOffset` decides which offsets each micro-batch reads, and Spark stores the decision in its checkpoint. This
module translates Spark's calls into calls of the planner.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headway.errors import ConfigError
from headway.spark.session.error_messages import one_sentence
from headway.spark.source import range_packing, read_task
from headway.spark.source.batch_planner import BatchPlanner
from headway.spark.source.options import Options
from headway.spark.source.stream_offset import StreamOffset, naming_of


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches by priority, and reads them."""

    def __init__(self, options: Options | ConfigError, asked: StructType) -> None:
        self._parsed = options
        self._asked = asked
        # Spark sends this object to its tasks, so the planner is only created where it is needed, on the driver.
        self._planner: BatchPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint."""
        with one_sentence():
            return self._plan().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the maximum number of records in a micro-batch, from maxRecordsPerTrigger and targetTriggerTime."""
        with one_sentence():
            most = self._options.most_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set the end of the query, so that it reads only the records that exist now."""
        with one_sentence():
            self._plan().stop_at_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch. The levels share the limit.

        Raises `KafkaError` if Kafka no longer has the next offsets, unless failOnDataLoss is false.
        """
        with one_sentence():
            limited = not isinstance(limit, ReadAllAvailable)
            return self._plan().next(StreamOffset.from_json(start, self._options.naming), limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end offsets that the last call of `latestOffset` found. Spark shows them with the progress.

        For each level, the result also contains how long the oldest record that is not in the micro-batch has been
        waiting, in seconds.
        """
        planner = self._planner
        if planner is None or planner.seen is None:
            return None
        waits = {str(level): round(seconds, 1) for level, seconds in planner.waits.items()}
        return {**planner.seen.to_json(), "oldestWaitSeconds": waits}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a micro-batch, in one group for each task."""
        with one_sentence():
            naming = naming_of(end, self._options.naming)
            stop = StreamOffset.from_json(end, naming)
            wanted = range_packing.ranges(StreamOffset.from_json(start, naming), stop)
            without = self._plan().replaced_topics(stop)
            return read_task.input_partitions(wanted, stop.tasks, split=stop.split, without=without)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one group of ranges."""
        return read_task.read(self._options, self._asked, partition)

    def stop(self) -> None:
        """Close the connections to Kafka."""
        if self._planner is not None:
            self._planner.close()

    @property
    def _options(self) -> Options:
        # The error is not raised in the constructor, because PySpark would replace it there with another error.
        if isinstance(self._parsed, ConfigError):
            raise self._parsed
        return self._parsed

    def _plan(self) -> BatchPlanner:
        if self._options.timestamp_lateness is not None:
            raise ConfigError(
                "The option `timestampLateness` is for spark.read, because filters do not limit what a stream reads. "
                "Remove it."
            )
        if self._options.end is not None:
            raise ConfigError("The option `endingOffsets` is for spark.read, because a stream has no end. Remove it.")
        if self._planner is None:
            self._planner = BatchPlanner(self._options)
        return self._planner
