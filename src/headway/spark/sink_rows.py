"""Rows of Arrow batches as what the producer takes, in chunks of a bounded size."""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from headway.core.topics import level_topic
from headway.errors import DeliveryError
from headway.kafka.row_producer import Columns
from headway.spark.due_rows import DueRows
from headway.spark.sink_digest import RowsDigest

_MOST_BYTES = 8 * 2**20
_ANY_PARTITION = -1


def chunks(
    batch: pa.RecordBatch,
    topic: str | None,
    partitions_of: Callable[[str], int],
    due_rows: DueRows | None = None,
    digest: RowsDigest | None = None,
) -> Iterator[Columns]:
    """The rows in order; `topic` is that of all, if they do not say it, and `partitions_of` tells a topic's size.

    With `due_rows`, those that are due later go to its lines. A `digest` takes in each chunk before it comes. Of a row
    with `skip` nothing is written: only its identity counts.

    Raises `DeliveryError` for a row that names no topic, or a topic, level or partition that Kafka does not have.
    """
    pieces = -(-batch.nbytes // _MOST_BYTES) or 1
    length = -(-batch.num_rows // pieces) or 1
    for start in range(0, batch.num_rows, length):
        piece = batch.slice(start, length)
        identities = _identities(piece)
        if digest is not None and identities is not None:
            digest.add_identities(identities)
        if "skip" in piece.schema.names:
            piece = piece.filter(pc.invert(pc.fill_null(piece.column("skip"), False)))
        if not piece.num_rows:
            continue
        columns = _columns(piece, topic, partitions_of)
        due = _microseconds(piece.column("due")) if "due" in piece.schema.names else None
        if digest is not None and identities is None:
            digest.add(columns, due)
        yield columns if due_rows is None or due is None else due_rows.routed(columns, due)


def _columns(batch: pa.RecordBatch, topic: str | None, partitions_of: Callable[[str], int]) -> Columns:
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    topics = _kafka_topics(present.get("topic"), present.get("level"), topic, batch.num_rows)
    distinct = {topic: partitions_of(topic) for topic in pc.unique(topics).to_pylist()}
    for name, count in distinct.items():
        if not count:
            raise _no_such_topic(name, has_levels="level" in present)
    _check_partitions(present.get("partition"), topics, distinct)
    return Columns(
        rows=batch.num_rows,
        size=batch.nbytes,
        topics=repeat(*distinct) if len(distinct) == 1 else topics.to_pylist(),
        values=present["value"].to_pylist(),
        keys=present["key"].to_pylist() if "key" in present else repeat(None),
        partitions=_partitions(present.get("partition")),
        headers=list(map(_header_list, present["headers"].to_pylist())) if "headers" in present else None,
    )


def _kafka_topics(topics: pa.Array | None, levels: pa.Array | None, topic: str | None, rows: int) -> pa.Array:
    """The Kafka topic of each row: that of its level, if it has one."""
    if topics is None:
        topics = pa.repeat(pa.scalar(topic), rows)
    _refuse_null("topic", topics)
    if levels is None:
        return topics
    _refuse_null("level", levels)
    return pc.binary_join_element_wise(topics, pc.cast(levels, pa.string()), level_topic("", 0)[:1])


def _refuse_null(name: str, column: pa.Array) -> None:
    if column.null_count:
        raise DeliveryError(f"{column.null_count} rows have no {name}: it is null. Fill it in, or filter them out.")


def _no_such_topic(name: str, *, has_levels: bool) -> DeliveryError:
    topic, _, level = name.rpartition("-")
    if has_levels:
        return DeliveryError(
            f"A row is for level {level} of {topic}, and Kafka has no topic {name}. Create it (`headway topics create "
            f"{topic} --levels {int(level) + 1}`), or correct the columns topic and level."
        )
    return DeliveryError(
        f"A row is for {name}, and Kafka has no such topic. Create it (`headway topics create {name}`), or correct "
        "the topic."
    )


def _check_partitions(partitions: pa.Array | None, topics: pa.Array, counts: dict[str, int]) -> None:
    if partitions is None or partitions.null_count == len(partitions):
        return
    for name, count in counts.items():
        extent = pc.min_max(pc.filter(partitions, pc.equal(topics, name))).as_py()
        if extent["min"] is not None and (extent["min"] < 0 or extent["max"] >= count):
            wrong = extent["min"] if extent["min"] < 0 else extent["max"]
            raise DeliveryError(
                f"A row is for partition {wrong} of {name}; there are 0 to {count - 1}. Correct the column partition, "
                "or leave it null for the key to decide."
            )


def _partitions(partitions: pa.Array | None) -> Iterable[int]:
    if partitions is None:
        return repeat(_ANY_PARTITION)
    return pc.fill_null(partitions, _ANY_PARTITION).to_pylist()  # type: ignore[no-any-return]


def _identities(batch: pa.RecordBatch) -> list[Any] | None:
    if "identity" not in batch.schema.names:
        return None
    _refuse_null("identity", batch.column("identity"))
    return batch.column("identity").to_pylist()  # type: ignore[no-any-return]


def _microseconds(due: pa.Array) -> list[int | None]:
    return pc.cast(pc.cast(due, pa.timestamp("us", "UTC")), pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _header_list(headers: list[dict[str, Any]] | None) -> list[tuple[str, Any]] | None:
    return [(header["key"], header["value"]) for header in headers] if headers else None
