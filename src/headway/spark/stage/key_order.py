"""Repartitions rows by key, so that they stay in order if the source splits partitions.

This also permits more tasks than the topic has partitions.
"""

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's documentation uses this name

from headway.declarations import check_whole
from headway.errors import ConfigError
from headway.spark.session.error_messages import one_sentence
from headway.spark.session.plan_names import shown_as
from headway.spark.session.plan_sources import PlannedSource, planned_sources
from headway.spark.stage.arrow_schema import check_comes_as_arrow

_PLACE = ("topic", "level", "partition", "offset")
_ROWS_OF_A_BATCH = 10_000


def repartition_by_key(df: DataFrame, partitions: int | None = None) -> DataFrame:
    """Repartition a frame from `format("headway")` so that all records of a key are in one task, in their order.

    With this, more tasks can read and handle a micro-batch than the topic has partitions: read with `splitPartitions`,
    and call this function before `parallel_map`. Within a task, records of higher levels come first, and the records of
    a partition are in the order of their offsets. Records without a key are spread over all tasks. A task holds all its
    records of the micro-batch in memory while it sorts them.

    `partitions` is the number of tasks. By default it is the present value of the setting
    `spark.sql.shuffle.partitions`. Spark's adaptive execution does not merge these tasks, so a micro-batch that is run
    again has the same rows in the same tasks.

    Raises `ConfigError` if the frame lacks one of the source's columns, if it has a column that cannot be passed to
    Python, or if `partitions` is below 1.
    """
    missing = [name for name in ("key", *_PLACE) if name not in df.columns]
    if missing:
        raise ConfigError(
            f"The DataFrame has no column `{missing[0]}`. repartition_by_key needs the columns key, "
            f'{", ".join(_PLACE)} of format("headway"). Call it before you select other columns.'
        )
    check_comes_as_arrow(df)
    if partitions is not None:
        check_whole("partitions", partitions, 1)
    spread = F.coalesce(F.col("key"), F.xxhash64(*_PLACE).cast("string").cast(df.schema["key"].dataType))
    count = partitions or int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    return df.repartition(count, spread).mapInArrow(shown_as("headway repartition_by_key", _sorted), df.schema)


def check_keys_stay_together(df: DataFrame) -> None:
    """Raise `ConfigError` if the source of the frame can divide the rows of a key among several tasks.

    Nothing is raised if an operator after the source, such as an aggregation, moves rows to other tasks. In that case,
    the user is responsible for their order.
    """
    if any(_is_split(source) and not source.moved for source in planned_sources(df)):
        raise ConfigError(
            'The DataFrame is from format("headway") with split partitions, so rows of a key can be in several tasks. '
            "Set splitPartitions to false, put repartition_by_key before parallel_map, or set key=None if the rows "
            "need no order."
        )


def _is_split(source: PlannedSource) -> bool:
    return source.options.get("splitpartitions", "false" if source.is_stream else "true").strip().lower() == "true"


def _sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = list(batches)
    if not found:
        return
    with one_sentence():
        rows = pa.Table.from_batches(found)
        columns = [("level", "descending"), *((name, "ascending") for name in _PLACE if name != "level")]
        order = pc.sort_indices(rows, sort_keys=columns)
        # Reorder the rows in pieces, because Arrow's `take` supports at most 2 GB of a column at a time.
        for first in range(0, len(order), _ROWS_OF_A_BATCH):
            yield from rows.take(order.slice(first, _ROWS_OF_A_BATCH)).combine_chunks().to_batches()
