"""Runs in Spark's tasks: reads the records of a group of ranges from Kafka and yields them as Arrow batches."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headway.kafka.binding.columns import IS_COMPILED, RecordRun
from headway.kafka.reading.arrow_columns import columns_of
from headway.kafka.reading.range_reader import Message, Range, RangeReader, fetched_ahead, name_of
from headway.kafka.reading.topic_naming import kafka_topic
from headway.records.record_types import TopicPartition
from headway.runtime.gc_pause import GcPause
from headway.spark.session.error_messages import one_sentence
from headway.spark.source import range_packing
from headway.spark.source.options import Options
from headway.spark.source.schema import spark_columns

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
            yield from _joined(_batches(reader, wanted, schema, keys, without_time))
    finally:
        for source, untimed in without_time.items():
            log.warning("In %s %s", name_of(source), untimed)


def _batches(
    reader: RangeReader,
    wanted: Sequence[Range],
    schema: pa.Schema,
    keys: Collection[bytes] | None,
    without_time: dict[TopicPartition, "_WithoutTime"],
) -> Iterator[pa.RecordBatch]:
    """Yield the requested columns in non-empty batches. Each batch has records of one partition."""
    headers = "headers" in schema.names
    only = None if keys is None else pa.array(keys, pa.binary())
    found: Iterable[tuple[TopicPartition, Sequence[Message] | RecordRun]]
    found = reader.read_columns(wanted) if IS_COMPILED and not headers else reader.read(wanted)
    for source, messages in found:
        records = columns_of(messages, headers=headers)
        if only is not None:
            records = records.filter(pc.is_in(records.column("key"), value_set=only))
        if not len(records):
            continue
        batch = spark_columns(source, records, schema)
        if "timestamp" in schema.names and batch.column("timestamp").null_count:
            without_time.setdefault(source, _WithoutTime()).add(batch.column("timestamp"), records)
        yield batch


def _joined(found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join short batches, because each batch costs Spark 1 ms."""
    some: list[pa.RecordBatch] = []
    records = size = 0
    for batch in found:
        some.append(batch)
        records += len(batch)
        size += batch.nbytes
        if records >= ENOUGH_RECORDS or size >= ENOUGH_BYTES:
            yield _one(some)
            some, records, size = [], 0, 0
    if some:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return a batch with the rows of all these batches."""
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(each) for each in columns], schema=batches[0].schema)


@dataclass(slots=True)
class _WithoutTime:
    """The records of a partition whose timestamps Spark cannot represent."""

    count: int = 0
    offset: int | None = None
    stamp: int = 0

    def add(self, timestamps: pa.Array, records: pa.RecordBatch) -> None:
        """Count the records whose timestamps are null, and remember the first such record of the partition."""
        if not self.count:
            first = timestamps.is_null().index(True).as_py()
            self.offset, self.stamp = (records.column(name)[first].as_py() for name in ("offset", "timestamp"))
        self.count += timestamps.null_count

    def __str__(self) -> str:
        return (
            f"{self.count} records have a timestamp outside the years 1 to 9999, which is null in Spark. The first of "
            f"them, at offset {self.offset}, has {self.stamp}. Kafka's timestamps are milliseconds since 1970. Make "
            "the producer send milliseconds."
        )
