"""`spark.readStream.format("headway")` and `spark.read.format("headway")`: Kafka by priority.

Spark owns the progress: what each micro-batch reads is decided in `latestOffset`, from offsets alone, and kept in
Spark's checkpoint. This file translates between Spark's calls and `planning` and `RangeReader`.
"""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headway.core.capacity import exponential
from headway.errors import ConfigError, KafkaError
from headway.kafka.ranges import Offsets, Range, RangeReader
from headway.records import TopicPartition
from headway.spark import columns, planning
from headway.spark.options import Options, check_kafka, parse
from headway.spark.sentences import one_sentence
from headway.spark.sink import batch_writer, stream_writer


class HeadwayDataSource(DataSource):
    """Kafka topics with priority levels, as a source for Spark.

    Options: `subscribe` (topics, with commas between them), `levels`, `kafka.bootstrap.servers` and any other
    setting of librdkafka behind `kafka.`, `startingOffsets` (`earliest` or `latest`), `includeHeaders`, and for
    streams `maxRecordsPerTrigger`. The columns are those of Spark's Kafka source, and `level`.
    """

    @classmethod
    def name(cls) -> str:
        """What users write in `format(…)`."""
        return "headway"

    def schema(self) -> StructType:
        """The columns. Called by `load()`, it is the first to see the options, and checks them all."""
        with one_sentence():
            options = parse(self.options)
            check_kafka(options)
            return columns.schema(options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`: everything that the topics hold now."""
        with one_sentence():
            return BatchReader(_for_batch(parse(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """For `spark.readStream`."""
        return StreamReader(parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`: see `headway.spark.sink`."""
        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """For `df.writeStream`: see `headway.spark.sink`."""
        return stream_writer(schema, self.options)


class BatchReader(DataSourceReader):
    """Reads each partition from its first offset to its end at the time of planning."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges, in about one group per core."""
        with one_sentence(), RangeReader(self._options.kafka) as reader:
            partitions = reader.partitions(self._options.topics, self._options.levels)
            return _input_partitions(planning.ranges(reader.starts(partitions), reader.ends(partitions)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one group of ranges."""
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches by priority and reads them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Spark sends this object to its tasks: a client is opened only where one is asked for, on the driver.
        self._reader: RangeReader | None = None
        self._target: Offsets | None = None
        self._seen: Offsets | None = None

    def initialOffset(self) -> planning.OffsetJson:  # noqa: N802
        """Where a query without a checkpoint starts."""
        with one_sentence():
            reader = self._open()
            partitions = reader.partitions(self._options.topics, self._options.levels)
            earliest = self._options.starting_offsets == "earliest"
            return planning.to_json(reader.starts(partitions) if earliest else reader.ends(partitions))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRecordsPerTrigger."""
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes what is available now: the query reads this and no more."""
        with one_sentence():
            self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> planning.OffsetJson:  # noqa: N802
        """Where the next micro-batch ends; the limit is split over the levels.

        Raises `KafkaError` when Kafka no longer has what was read up to.
        """
        with one_sentence():
            begin = planning.from_json(start)
            self._seen = self._ends() if self._target is None else self._target
            _check_nothing_lost(begin, self._seen)
            # A new partition is only put down, at its first offset, so that its first range is in the checkpoint too.
            added = self._open().starts(self._seen.keys() - begin.keys())
            end = {partition: self._seen[partition] for partition in begin}
            if isinstance(limit, ReadMaxRows):
                end = planning.limited(begin, end, exponential(self._options.levels, limit.max_rows))
            return planning.to_json(end | added)

    def reportLatestOffset(self) -> planning.OffsetJson | None:  # noqa: N802
        """What was available at the last micro-batch, for the query's progress."""
        return None if self._seen is None else planning.to_json(self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of a micro-batch, in about one group per core."""
        return _input_partitions(planning.ranges(planning.from_json(start), planning.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one group of ranges."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close the connections to Kafka."""
        if self._reader is not None:
            self._reader.close()

    def _open(self) -> RangeReader:
        if self._reader is None:
            self._reader = RangeReader(self._options.kafka)
        return self._reader

    def _ends(self) -> Offsets:
        reader = self._open()
        return reader.ends(reader.partitions(self._options.topics, self._options.levels))


def _for_batch(options: Options) -> Options:
    if options.max_records is not None:
        raise ConfigError("The option maxRecordsPerTrigger is for spark.readStream; spark.read reads all. Remove it.")
    if options.starting_offsets == "latest":
        raise ConfigError("With startingOffsets=latest spark.read would read nothing. Choose earliest or leave it out.")
    return options


def _check_nothing_lost(begin: Offsets, available: Offsets) -> None:
    for partition, offset in begin.items():
        if available.get(partition, -1) < offset:
            raise KafkaError(
                f"The query has read {partition.topic}, level {partition.level}, partition {partition.partition} up to "
                f"offset {offset}, but Kafka has {_extent(available, partition)}: the topic was deleted and created "
                "again, or `subscribe` or `levels` no longer name it. Start anew with a new checkpoint."
            )


def _extent(available: Offsets, partition: TopicPartition) -> str:
    return f"it up to {available[partition]}" if partition in available else "no such partition"


def _input_partitions(wanted: Sequence[Range]) -> list[InputPartition]:
    tasks = planning.task_count(sum(map(len, wanted)), os.cpu_count() or 1)
    return [InputPartition(group) for group in planning.pack(wanted, tasks)]


def _read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    wanted: list[Range] = partition.value or []  # Spark hands out `None` for a batch with no partitions
    schema = to_arrow_schema(columns.schema(options.include_headers), timezone="UTC")
    with one_sentence(), _no_garbage_collection(), RangeReader(options.kafka) as reader:
        for source, records in reader.read(wanted):
            yield columns.record_batch(records, source, schema)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Records are not cyclic, and looking for cycles among them takes almost half of the time of fetching them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
