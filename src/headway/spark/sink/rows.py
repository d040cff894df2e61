"""Converts rows in Arrow batches to columns for the producer, in chunks of a bounded size.

Each error names the row that caused it. A restarted query would fail on the same row again, so the user must be able to
find that row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from headway.core.levels.naming import MOST_LEVELS, how_to_create, is_topic_name, level_topic
from headway.core.untrusted import LATEST
from headway.declarations import shown
from headway.errors import DeliveryError
from headway.kafka.producer.columnar import Columns, SuspectRows
from headway.records.expiry import expiry_header
from headway.spark.sink.digest import RowsDigest
from headway.spark.sink.existing_topics import existing_topics, first_true, refuse_null
from headway.spark.sink.scheduled_rows import DueRows

_MOST_BYTES = 8 * 2**20
_ANY_PARTITION = -1
_KAFKAS_OWN = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def chunks(
    batch: pa.RecordBatch,
    topic: str | None,
    partitions_of: Callable[[str], int],
    due_rows: DueRows | None = None,
    digest: RowsDigest | None = None,
    first: int = 0,
    priorities: Mapping[str, int] | None = None,
) -> Iterator[Columns]:
    """Yield the rows of a batch in their order, in chunks for the producer.

    A row whose column `skip` is true is not yielded; only its identity counts in the digest.

    Args:
        batch: The rows.
        topic: The topic of rows that have no column `topic`.
        partitions_of: A function that returns the number of partitions of a topic, or 0 if the topic does not exist.
        due_rows: Routes rows with a due time to delay topics. None if there is no column `due`.
        digest: The digest to which each chunk is added before it is yielded.
        first: How many rows of the task came before this batch.
        priorities: The level of each existing topic, from the option `priorities`.

    Raises `DeliveryError` if a row has no topic, if Kafka does not have its topic, level or partition, if Kafka does
    not accept its headers, or if its expiry time is not valid.
    """
    pieces = -(-batch.nbytes // _MOST_BYTES) or 1
    length = -(-batch.num_rows // pieces) or 1
    for start in range(0, batch.num_rows, length):
        piece = batch.slice(start, length)
        names = _RowNames(piece, first + start)
        identities = _identities(piece, names)
        if digest is not None and identities is not None:
            digest.add_identities(identities)
        if "skip" in piece.schema.names:
            written = pc.invert(pc.fill_null(piece.column("skip"), False))
            piece, names = piece.filter(written), names.of(written)
        if not piece.num_rows:
            continue
        columns = _columns(piece, topic, partitions_of, names, priorities)
        due = _microseconds(piece.column("due")) if "due" in piece.schema.names else None
        if digest is not None and identities is None:
            digest.add(columns, due)
        if "expires" in piece.schema.names:  # not in the digest, because expiry times may differ in a replay
            columns = expiring(columns, _microseconds(piece.column("expires")), due)
        yield columns if due_rows is None or due is None else due_rows.routed(columns, due)


@dataclass(frozen=True, slots=True)
class _RowNames:
    """Names rows in error messages: by the row's identity, or if it has none, by its position in the task."""

    piece: pa.RecordBatch
    first: int
    written: pa.Array | None = None

    def of(self, written: pa.Array) -> "_RowNames":
        """Return names for the rows that remain when the batch is filtered by the mask `written`."""
        return _RowNames(self.piece, self.first, written)

    def __call__(self, index: int) -> str:
        place = index if self.written is None else int(np.flatnonzero(self.written)[index])
        if "identity" in self.piece.schema.names:
            column = self.piece.column("identity")
            if column[place].is_valid:
                return f"The row whose identity is {shown(_list(column.slice(place, 1))[0])}"
        return f"Row {self.first + place + 1} of its task"


def _columns(
    batch: pa.RecordBatch,
    topic: str | None,
    partitions_of: Callable[[str], int],
    name_of: _RowNames,
    priorities: Mapping[str, int] | None,
) -> Columns:
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    if priorities is None:
        topics = _kafka_topics(present.get("topic"), present.get("level"), topic, batch.num_rows, name_of)
    else:
        topics = existing_topics(present.get("topic"), present.get("level"), priorities, name_of)
    distinct = _partition_counts(topics, partitions_of, present, name_of)
    _check_partitions(present.get("partition"), topics, distinct, name_of)
    return Columns(
        rows=batch.num_rows,
        size=batch.nbytes,
        topics=repeat(*distinct) if len(distinct) == 1 else topics.to_pylist(),
        values=_list(present["value"]),
        keys=_list(present["key"]) if "key" in present else repeat(None),
        partitions=_partitions(present.get("partition")),
        headers=_headers(present["headers"], name_of) if "headers" in present else None,
        name_of=name_of,
        suspects=_suspects(topics, distinct, present, name_of),
    )


def _kafka_topics(
    topics: pa.Array | None, levels: pa.Array | None, topic: str | None, rows: int, name_of: _RowNames
) -> pa.Array:
    """Return the Kafka topic of each row. For a row with a level, it is the topic of that level, such as `orders-2`."""
    if topics is None:
        topics = pa.repeat(pa.scalar(topic), rows)
    refuse_null("topic", topics, name_of)
    if levels is not None:
        refuse_null("level", levels, name_of)
        if (index := first_true(pc.less(levels, 0))) >= 0:
            raise DeliveryError(
                f"{name_of(index)} is for level {levels[index]}, but levels are numbered from 0, the lowest priority. "
                "Correct the column `level`, or filter out such rows."
            )
        hyphen = pa.scalar(level_topic("", 0)[:1], topics.type)
        topics = pc.binary_join_element_wise(topics, pc.cast(levels, topics.type), hyphen)
    return topics


def _partition_counts(
    topics: pa.Array, partitions_of: Callable[[str], int], present: Mapping[str, pa.Array], name_of: _RowNames
) -> dict[str, int]:
    """Return the number of partitions of each topic. Raises `DeliveryError` if a topic does not exist."""
    counts = {}
    in_bytes = topics.cast(_bytes_of(topics.type))  # compared as bytes, because a string in Spark need not be UTF-8
    for name in pc.unique(in_bytes).to_pylist():
        topic = name.decode(errors="replace")
        if not (count := partitions_of(topic) if is_topic_name(topic) and topic not in _KAFKAS_OWN else 0):
            index = pc.index(in_bytes, pa.scalar(name, in_bytes.type)).as_py()
            raise DeliveryError(f"{name_of(index)} is for {_no_such_topic(topic, present, index)}")
        counts[topic] = count
    return counts


def _no_such_topic(name: str, present: Mapping[str, pa.Array], index: int) -> str:
    if name in _KAFKAS_OWN:
        return f"{name}, which is one of Kafka's internal topics. Correct the topic."
    if "level" not in present or not name.endswith(f"-{present['level'][index]}"):
        return f"{shown(name)}, but Kafka has no such topic. {how_to_create(name)} Or correct the topic."
    level = present["level"][index].as_py()
    topic = name.removesuffix(f"-{level}")
    hint = how_to_create(topic, level + 1) if level < MOST_LEVELS else f"A topic can have at most {MOST_LEVELS} levels."
    return f"level {level} of {topic}, but Kafka has no topic {name}. {hint} Or correct the row's `topic` or `level`."


def _check_partitions(
    partitions: pa.Array | None, topics: pa.Array, counts: dict[str, int], name_of: _RowNames
) -> None:
    if partitions is None or partitions.null_count == len(partitions):
        return
    for topic, count in counts.items():
        is_wrong = pc.or_(pc.less(partitions, 0), pc.greater_equal(partitions, count))
        if (index := first_true(pc.and_(pc.equal(topics, topic), is_wrong))) >= 0:
            raise DeliveryError(
                f"{name_of(index)} is for partition {partitions[index]} of {topic}, whose partitions are 0 to "
                f"{count - 1}. Correct the column `partition`, or leave it null so that the key decides."
            )


def _partitions(partitions: pa.Array | None) -> Iterable[int]:
    if partitions is None:
        return repeat(_ANY_PARTITION)
    return pc.fill_null(partitions, _ANY_PARTITION).to_pylist()  # type: ignore[no-any-return]


def _identities(batch: pa.RecordBatch, name_of: _RowNames) -> list[Any] | None:
    if "identity" not in batch.schema.names:
        return None
    refuse_null("identity", batch.column("identity"), name_of)
    return _list(batch.column("identity"))


def _microseconds(due: pa.Array) -> list[int | None]:
    return pc.cast(pc.cast(due, pa.timestamp("us", "UTC")), pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _headers(headers: pa.Array, name_of: _RowNames) -> list[list[tuple[str, Any]] | None]:
    """Return the headers of each row, leaving out null headers. Raises `DeliveryError` if a name is not valid."""
    names = headers.flatten().drop_null().flatten()[0]
    if names.null_count or pc.any(pc.match_substring(names, "\0")).as_py():
        _refuse_names(headers, name_of)
    try:
        lists = _list(headers)
    except UnicodeDecodeError:  # a name is the cause, because `_list` returns values that are not UTF-8 as bytes
        _refuse_names(headers, name_of)
        raise
    return list(map(_header_list, lists))


def _refuse_names(headers: pa.Array, name_of: _RowNames) -> None:
    """Raise `DeliveryError` for the first row with a header name that Kafka does not accept."""
    for index, own in enumerate(headers):
        for header in own if own.is_valid else ():
            if header.is_valid and (wrong := _wrong_name(header["key"])):
                raise DeliveryError(
                    f"{name_of(index)} has a header whose name {wrong}. Correct it, or filter out such headers: "
                    "filter(headers, header -> header.key is not null)."
                )


def _wrong_name(name: pa.Scalar) -> str | None:
    if not name.is_valid:
        return "is null"
    try:
        text = name.as_py()
    except UnicodeDecodeError:
        return "is not UTF-8"
    return f"is {shown(text)}, with a NUL character, at which Kafka's client would cut it off" if "\0" in text else None


def _header_list(headers: list[dict[str, Any] | None] | None) -> list[tuple[str, Any]] | None:
    return [(header["key"], header["value"]) for header in headers if header] or None if headers else None


def _suspects(
    topics: pa.Array, distinct: Iterable[str], present: Mapping[str, pa.Array], name_of: _RowNames
) -> dict[str, SuspectRows]:
    """Return the rows that Kafka is most likely to reject: for each topic the longest value, and the first null key."""
    sizes = pc.fill_null(pc.binary_length(present["value"]), 0)
    has_no_key = pc.is_null(present["key"]) if "key" in present else pa.repeat(True, len(topics))
    found = {}
    for topic in distinct:
        is_own = pc.equal(topics, topic)
        own_sizes = pc.if_else(is_own, sizes, -1)
        longest = pc.index(own_sizes, size := pc.max(own_sizes)).as_py()
        without_key = first_true(pc.and_(is_own, has_no_key))
        found[topic] = SuspectRows(size.as_py(), name_of(longest), name_of(without_key) if without_key >= 0 else None)
    return found


def _list(column: pa.Array) -> list[Any]:
    """Return the values of a column. A string that is not UTF-8, which Spark allows, is returned as bytes."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        in_bytes = column.cast(_bytes_of(column.type))
        return [_either(text, data) for text, data in zip(column, in_bytes, strict=True)]


def _either(text: pa.Scalar, data: pa.Scalar) -> Any:
    try:
        return text.as_py()
    except UnicodeDecodeError:
        return data.as_py()


def _bytes_of(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type with each string replaced by binary, except in the names of headers."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        name, value = kind.value_type
        header = pa.struct([name, value.with_type(_bytes_of(value.type))])
        return pa.list_(kind.value_field.with_type(header))
    return kind


def expiring(columns: Columns, expires: Sequence[int | None], due: Sequence[int | None] | None) -> Columns:
    """Add the expiry header to records that have an expiry time. Times are in microseconds since the epoch.

    Raises `DeliveryError` if an expiry time is not between the years 1970 and 9999, or if a row would expire before it
    is due.
    """
    headers: list[Any] = []
    rows = zip(expires, due or repeat(None), columns.headers or repeat(None), strict=False)
    for index, (at, due_at, own) in enumerate(rows):
        if at is None:
            headers.append(own)
            continue
        if not 0 <= at // 1000 <= LATEST:
            raise DeliveryError(
                f"{columns.name_of(index)} expires {at // 1000} ms after 1970; the time must be between the years 1970 "
                "and 9999. Correct the column `expires`, or leave it null."
            )
        if due_at is not None and at <= due_at:
            raise DeliveryError(
                f"{columns.name_of(index)} expires {at // 1000} ms after 1970, but is due {due_at // 1000} ms after "
                "1970, so it would expire before it is delivered. Set a later time in the column `expires`, or leave "
                "it null."
            )
        headers.append([*(own or ()), expiry_header(at // 1000)])
    return columns._replace(headers=headers)
