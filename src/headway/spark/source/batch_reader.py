"""The reader of `spark.read.format("headway")`, which reads all records between two bounds."""

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headway.errors import ConfigError, KafkaError
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.range_reader import Offsets, Range, name_of
from headway.spark.option_parsing import LARGEST
from headway.spark.session.error_messages import one_sentence
from headway.spark.source import read_task
from headway.spark.source.offset_bounds import resolve
from headway.spark.source.options import Options
from headway.spark.source.pushed_filters import Bounds, bounds_of

log = logging.getLogger(__name__)

# This number does not depend on the machine, so that a write with txnAppId has the same tasks when it is repeated on
# another machine.
_LEAST_TASKS = 8

_FOR_STREAMS = (
    ("max_records", "maxRecordsPerTrigger"),
    ("target_trigger_time", "targetTriggerTime"),
    ("group", "group.id"),
)


class BatchReader(DataSourceReader):
    """Reads each partition from the bound `startingOffsets` to the bound `endingOffsets`."""

    def __init__(self, options: Options, asked: StructType) -> None:
        for field, name in _FOR_STREAMS:
            if getattr(options, field) is not None:
                raise ConfigError(
                    f"The option `{name}` is for spark.readStream; spark.read reads everything. Remove it."
                )
        if options.min_records > 1:
            raise ConfigError(
                "The option `minRecordsPerTrigger` is for spark.readStream; spark.read does not wait. Remove it."
            )
        if options.start == "latest":
            raise ConfigError("With startingOffsets=latest spark.read would read nothing. Choose earliest or a time.")
        if options.end == "earliest":
            raise ConfigError("With endingOffsets=earliest spark.read would read nothing. Choose latest or a time.")
        self._options = options
        self._asked = asked
        self._bounds = Bounds()

    @property
    def pushFilters(self) -> "PushedFilters":  # noqa: N802  # Spark's name
        """The function to which Spark passes the filters of a query, if filter pushdown is enabled in the session."""
        return PushedFilters(self)

    def bound(self, filters: Sequence[Filter]) -> None:
        """Limit the offsets that are read to those that can pass all filters."""
        self._bounds = bounds_of(filters)

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of offsets to read, in one group for each task."""
        with one_sentence():
            wanted = self._ranges()
            options = self._options.tasks
            return read_task.input_partitions(wanted, options.count(wanted, _LEAST_TASKS), split=options.split)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one group of ranges."""
        return read_task.read(self._options, self._asked, partition, self._bounds.key)

    def _ranges(self) -> list[Range]:
        options = self._options
        catalog = Catalog(options.kafka, options.isolation)
        partitions = options.selection.find(catalog, options.naming).partitions
        if not partitions:
            raise KafkaError(
                f"{options.selection.none_found(options.naming)}. Correct the pattern or the number of levels."
            )
        start = resolve("startingOffsets", options.start or "earliest", partitions, catalog)
        end = resolve("endingOffsets", options.end or "latest", partitions, catalog)
        lost = _not_held(start, end, catalog.starts(partitions), catalog.ends(partitions))
        if lost and options.fail_on_data_loss:
            raise KafkaError(
                f"{lost[0]} Correct startingOffsets and endingOffsets, or set failOnDataLoss to false to read only the "
                "offsets that the partition holds."
            )
        for sentence in lost:
            log.warning("%s The missing offsets are skipped.", sentence)
        start, end = self._bounded(catalog, start, end)
        return [Range(at, start[at], end[at]) for at in sorted(start) if start[at] < end[at]]

    def _bounded(self, catalog: Catalog, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        bounds, lateness = self._bounds, self._options.timestamp_lateness
        start, end = bounds.within(start, end)
        if bounds.first_time is not None:
            found = catalog.at(bounds.first_time, list(start))
            start = {at: max(offset, found[at]) for at, offset in start.items()}
        if bounds.end_time is not None and lateness is not None:
            # Timestamps need not be in order, so a record before `end_time` can follow a record after it. `lateness` is
            # how much older such a record can be.
            beyond = min(LARGEST, max(0, bounds.end_time + round(lateness * 1000)))
            found = catalog.at(beyond, list(end))
            end = {at: min(offset, found[at]) for at, offset in end.items()}
        return start, end


class PushedFilters:
    """Replaces a reader's method `pushFilters`, so that the reader also works without filter pushdown.

    If filter pushdown is not enabled in a session, Spark rejects a reader that overrides `pushFilters`. Spark compares
    `__func__` with the function of the base class, so the `__func__` of this object is that function.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Use the filters to read fewer offsets. Returns all filters, so that Spark also applies them to the rows."""
        self._reader.bound(filters)
        return filters


def _not_held(start: Offsets, end: Offsets, first: Offsets, last: Offsets) -> list[str]:
    """Return a message for each partition that does not hold all offsets that the options request."""
    return [
        f"Offsets from {start[at]} to before {end[at]} were requested for {name_of(at)}, which holds {first[at]} to "
        f"before {last[at]}."
        for at in sorted(start)
        if start[at] < first[at] or max(start[at], end[at]) > last[at]
    ]
