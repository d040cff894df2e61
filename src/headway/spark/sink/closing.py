"""Decides on the driver, from the reports of all tasks, whether a version can be closed.

A single task has only its own rows and the markers in Kafka. Once all tasks have reported, the driver can decide
whether Kafka has all rows of the version, because the digests of the tasks add up to the same total however the rows
are divided into tasks. This module does no I/O.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headway.errors import TransactionError
from headway.spark.sink.digest import summed
from headway.spark.sink.markers import MOST_REMEMBERED, Marker, WritePart, WriteReport, refusal_of_all


class Closing(NamedTuple):
    """The driver's decision at the end of a version: the marker that closes the version, and a warning to log or "".

    `marker` is None if no marker must be written, for example because the version is already closed.
    """

    marker: Marker | None
    warning: str


def close(
    reports: Sequence[WriteReport],
    markers_in_kafka: Callable[[], Iterable[Marker]],
    marker_topic: str,
) -> Closing:
    """Decide how to close the version to which these reports belong.

    `markers_in_kafka` returns the markers of all slots. It is called only if a task could not tell from the markers
    whether its rows are in Kafka, or if an earlier run has written rows of this version.

    Raises `TransactionError` if this run did not write some rows and they are not known to be in Kafka, or if Kafka has
    other rows of this version.
    """
    part = reports[0].part
    closed = max((each.closed for each in reports if each.closed), key=lambda each: each.version, default=None)
    total = summed((each.what, each.when) for each in reports)
    doubts = [each.doubt for each in reports if each.doubt]
    is_past = closed is not None and closed.version >= part.version
    if doubts and not _is_there(part, total, closed, markers_in_kafka):
        if closed is None or not is_past or total is None:
            raise TransactionError(max(doubts, key=lambda each: each.rank).sentence)
        newest = max(closed.version, *(each.newest for each in reports))
        raise TransactionError(refusal_of_all(part, _rows(total), closed, newest, marker_topic))
    warning = _warning(part, [each for each in reports if not each.is_new], len(reports), marker_topic)
    if is_past or total is None:
        return Closing(None, warning)
    if not doubts and any(each.is_again and not each.is_kept for each in reports):
        _refuse_more(part, total, markers_in_kafka)
    before = closed.history[:MOST_REMEMBERED] if closed else ()
    return Closing(Marker(part.version, _rows(total), *total, part.run, before), warning)


def _refuse_more(part: WritePart, total: tuple[str, str], markers_in_kafka: Callable[[], Iterable[Marker]]) -> None:
    """Raise `TransactionError` unless Kafka has exactly the rows of these tasks, each of them once.

    The tasks themselves cannot notice other rows or duplicates if an earlier run had more tasks, or divided identical
    rows into tasks differently.
    """
    in_kafka = _in_kafka(part, markers_in_kafka)
    if in_kafka is None or in_kafka[0] != total[0]:
        there = "rows for several targets" if in_kafka is None else f"{_rows(in_kafka):,} rows"
        raise TransactionError(
            f"All tasks of {part.version_name} together have {_rows(total):,} rows, but according to the markers, "
            f"Kafka has {there} of this version: an earlier run had different rows, or divided them differently. Check "
            f'which rows are in the topics. To continue anyway, use .option("keepVersion", "{part.version}").'
        )


def _in_kafka(part: WritePart, markers_in_kafka: Callable[[], Iterable[Marker]]) -> tuple[str, str] | None:
    return summed((each.what, each.when) for each in markers_in_kafka() if each.version == part.version)


def _is_there(
    part: WritePart,
    total: tuple[str, str] | None,
    closed: Marker | None,
    markers_in_kafka: Callable[[], Iterable[Marker]],
) -> bool:
    """Return whether Kafka has all rows of a version, regardless of which tasks wrote them."""
    if total is None:
        return False
    if closed is not None and closed.version == part.version:
        return total[0] == closed.what
    if closed is not None and closed.version > part.version:
        return "".join(total) in closed.history
    in_kafka = _in_kafka(part, markers_in_kafka)
    return in_kafka is not None and in_kafka[0] == total[0]


def _rows(total: tuple[str, str]) -> int:
    return int(total[0].partition(":")[0])


def _warning(part: WritePart, idle: Sequence[WriteReport], tasks: int, marker_topic: str) -> str:
    if not idle:
        return ""
    rows = sum(_rows((each.what, "")) for each in idle)
    return (
        f"{len(idle)} of {tasks} tasks with rows of {part.version_name} wrote nothing: according to the markers in "
        f"{marker_topic}, Kafka already has their {rows:,} rows, from an earlier run or another attempt."
    )
