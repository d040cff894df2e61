"""What runs in Spark's tasks: the records of a group of ranges, as Arrow batches."""

from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headway.kafka.ranges import Range, RangeReader, fetched_ahead
from headway.kafka.uncollected import Uncollected
from headway.spark import columns, planning
from headway.spark.options import Options
from headway.spark.sentences import one_sentence


def input_partitions(wanted: Sequence[Range], tasks: int) -> list[InputPartition]:
    """The ranges in a group for each task, of which there are so many at the most."""
    return [InputPartition(group) for group in planning.pack(wanted, tasks)]


def read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of one group of ranges."""
    wanted: list[Range] = partition.value or []  # Spark hands out `None` for a batch with no partitions
    schema = to_arrow_schema(columns.schema(options.include_headers), timezone="UTC")
    kafka = {**fetched_ahead(wanted), **options.kafka, "isolation.level": options.isolation}
    reader = RangeReader(kafka, skip_lost=not options.fail_on_data_loss)
    with one_sentence(), Uncollected(), reader:
        for source, records in reader.read(wanted):
            yield columns.record_batch(records, source, schema)
