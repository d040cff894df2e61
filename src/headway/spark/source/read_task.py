"""Runs in Spark's tasks: reads the records of a group of ranges from Kafka and yields them as Arrow batches."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headway.core.record_size import size_of
from headway.kafka.reading.range_reader import Message, Range, RangeReader, fetched_ahead, name_of
from headway.kafka.reading.topic_naming import kafka_topic
from headway.records.record_types import TopicPartition, headers_of
from headway.runtime.gc_pause import GcPause
from headway.spark.session.error_messages import one_sentence
from headway.spark.source import range_packing
from headway.spark.source import schema as columns
from headway.spark.source.options import Options
from headway.spark.source.schema import PartitionRun

log = logging.getLogger(__name__)

ENOUGH_RECORDS, ENOUGH_BYTES = 1_000, 1_000_000
"""A batch ends when it has this many records or bytes. The last batch of a task can be smaller."""


def input_partitions(
    wanted: Sequence[Range], tasks: int, *, split: bool, without: Collection[str] = ()
) -> list[InputPartition]:
    """Divide the ranges into one group per task, at most `tasks` groups.

    Ranges of the Kafka topics in `without` are left out, but that does not move the other ranges to other tasks.
    """
    groups = range_packing.divide(wanted, tasks, split=split)
    return [InputPartition([each for each in group if kafka_topic(each.partition) not in without]) for group in groups]


def read(
    options: Options, asked: StructType, partition: InputPartition, keys: Collection[bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the requested columns of the records in one group of ranges.

    If `keys` is given, only records with one of these keys are included.
    """
    wanted: list[Range] = partition.value or []  # `None` if Spark plans a batch without partitions
    schema = to_arrow_schema(asked, timezone="UTC")
    kafka = {**fetched_ahead(wanted), **options.kafka, "isolation.level": options.isolation}
    without_time: dict[TopicPartition, _WithoutTime] = {}
    try:
        with one_sentence(), GcPause(), RangeReader(kafka, skip_lost=not options.fail_on_data_loss) as reader:
            for runs in _joined(_with_keys(reader.read(wanted), keys)):
                batch = columns.record_batch(runs, schema)
                if "timestamp" in schema.names and batch.column("timestamp").null_count:
                    _note_untimed(batch.column("timestamp"), runs, without_time)
                yield batch
    finally:
        for source, untimed in without_time.items():
            log.warning("In %s %s", name_of(source), untimed)


def _with_keys(found: Iterable[PartitionRun], keys: Collection[bytes] | None) -> Iterator[PartitionRun]:
    """Drop all records that do not have one of these keys. If `keys` is None, all records are kept."""
    for source, records in found:
        if wanted := records if keys is None else [record for record in records if record.key() in keys]:
            yield source, wanted


def _joined(found: Iterable[PartitionRun]) -> Iterator[list[PartitionRun]]:
    """Collect short runs of records into lists. Each list becomes one batch, because a batch costs Spark 1 ms."""
    joined: list[PartitionRun] = []
    records = size = 0
    for run in found:
        joined.append(run)
        records += len(run[1])
        size += _size(run[1]) if records < ENOUGH_RECORDS else 0
        if records >= ENOUGH_RECORDS or size >= ENOUGH_BYTES:
            yield joined
            joined, records, size = [], 0, 0
    if joined:
        yield joined


def _size(records: Iterable[Message]) -> int:
    return sum(size_of(record.value(), record.key(), headers_of(record)) for record in records)


@dataclass(slots=True)
class _WithoutTime:
    """The records of a partition whose timestamps Spark cannot represent."""

    count: int = 0
    offset: int | None = None
    stamp: int = 0

    def add(self, timestamps: pa.Array, records: Sequence[Message]) -> None:
        """Count the records whose timestamps are null, and remember the first such record of the partition."""
        if not self.count:
            first = records[timestamps.is_null().to_pylist().index(True)]
            self.offset, self.stamp = first.offset(), first.timestamp()[1]
        self.count += timestamps.null_count

    def __str__(self) -> str:
        return (
            f"{self.count} records have a timestamp outside the years 1 to 9999, which is null in Spark. The first of "
            f"them, at offset {self.offset}, has {self.stamp}. Kafka's timestamps are milliseconds since 1970. Make "
            "the producer send milliseconds."
        )


def _note_untimed(
    timestamps: pa.Array, runs: Sequence[PartitionRun], found: dict[TopicPartition, _WithoutTime]
) -> None:
    begin = 0
    for source, records in runs:
        of_run = timestamps.slice(begin, len(records))
        if of_run.null_count:
            found.setdefault(source, _WithoutTime()).add(of_run, records)
        begin += len(records)
