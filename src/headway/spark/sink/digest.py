"""Computes a digest of a task's rows, so that the sink recognises the rows when a run is repeated.

After a shuffle, the same rows arrive in another order, and with another number of cores they are divided into other
tasks. So each row is hashed on its own, and the digest is the sum of the hashes. The digests of all tasks then add up
to the same total, however the rows are divided into tasks.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, repeat
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from headway.kafka.producer.columnar import Columns
from headway.spark.sink.row_sample import Hashes, Places, RowSample, SampledRows

_encode = msgspec.msgpack.Encoder().encode
_MOST = 2**64 - 1
_WHAT = re.compile(r"([0-9]{1,18}):([0-9a-f]{16})(@\S+)?")
_WHEN = re.compile(r":([0-9a-f]{16})")


class RowsDigest:
    """The number of rows, and a digest of them that does not depend on their order.

    Rows are hashed with CRC-32, which Python computes in a tenth of a microsecond per row. Two different rows have the
    same hash with a probability of 1 in 2**32.

    Args:
        target: The cluster and topics that the rows go to. Rows for another target count as different rows, even if
            their identities are equal.
        written: Samples of the rows that other tasks have written. They are looked up among the added rows.
    """

    def __init__(self, target: str = "", written: SampledRows | None = None) -> None:
        self.rows = 0
        self.sample = RowSample()
        self.written = written or SampledRows(())
        self._target = target
        self._what = 0
        self._when: int | None = None
        self._last_identity: Any = None

    def add_identities(self, identities: Sequence[Any]) -> None:
        """Add rows by their identities instead of their contents.

        Consecutive rows with equal identities count as one row, because they come from one input row. If the handler is
        called again for that row, it may return more or fewer rows.
        """
        before = chain([self._last_identity], identities)
        distinct = [each for each, last in zip(identities, before, strict=False) if each != last]
        if identities:
            self._last_identity = identities[-1]
        self.rows += len(distinct)
        self._what = _sum(self._what, self._looked_at(lambda: distinct, len(distinct)))

    def add(self, columns: Columns, due: Sequence[int | None] | None = None) -> None:
        """Add rows by the contents that are written to Kafka, and by their due times."""

        def rows() -> Iterable[Any]:
            return zip(
                columns.values,  # must be first, because `zip` must end with this finite iterable
                columns.keys,
                columns.topics,
                columns.partitions,
                columns.headers or repeat(None),
                strict=False,
            )

        what = self._looked_at(rows, columns.rows)
        self.rows += columns.rows
        self._what = _sum(self._what, what)
        if due is not None:
            self._when = _sum(self._when or 0, what ^ _mixed(_checksums(due, columns.rows)))

    def _looked_at(self, rows: Callable[[], Iterable[Any]], count: int) -> Hashes:
        """Add the rows to the sample, look among them for rows that are already written, and return their hashes."""
        checksums = _checksums(rows(), count)
        hashes = _mixed(checksums)

        def rows_at(places: Places) -> Iterable[bytes]:
            is_wanted = np.zeros(count, np.uint8)
            is_wanted[places] = 1
            return map(_encode, compress(rows(), is_wanted.tobytes()))

        self.sample.add(checksums, hashes, rows_at)
        self.written.look(checksums, rows_at)
        return hashes

    @property
    def what(self) -> str:
        """The number of rows, a digest of their contents, and the target, as text."""
        return f"{self.rows}:{self._what:016x}" + (f"@{self._target}" if self._target else "")

    @property
    def when(self) -> str:
        """A digest of the rows' due times, as text, or an empty text if no row has a due time."""
        return "" if self._when is None else f":{self._when:016x}"


def target_of(what: str) -> str:
    """Return the target from text that `RowsDigest.what` returned, or an empty text if it has no target."""
    return what.partition("@")[2]


def summed(digests: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Add up the digests of all tasks, each given as its `what` and `when`. Returns the sum in the same form.

    The sum is the same however the rows are divided into tasks. Returns None if a digest is malformed, or if the
    digests have different targets.
    """
    rows = whats = whens = 0
    targets, has_due = set(), False
    for what, when in digests:
        found, due = _WHAT.fullmatch(what), _WHEN.fullmatch(when)
        if not found or (when and not due):
            return None
        rows += int(found[1])
        whats += int(found[2], 16)
        targets.add(found[3] or "")
        if due:
            has_due, whens = True, whens + int(due[1], 16)
    if len(targets) != 1:
        return None
    return f"{rows}:{whats & _MOST:016x}{targets.pop()}", f":{whens & _MOST:016x}" if has_due else ""


def _checksums(rows: Iterable[Any], count: int) -> Hashes:
    return np.fromiter(map(crc32, map(_encode, rows)), np.uint64, count)


def _sum(sum_so_far: int, hashes: Hashes) -> int:
    # Mix each hash again before adding: a hash can be the XOR of a row's hash and its due time's hash. Without mixing,
    # rows that exchange their due times might have the same sum.
    return (sum_so_far + int(_mixed(hashes).sum())) & _MOST


def _mixed(hashes: Hashes) -> Hashes:
    """Apply the finalizer of SplitMix64 to the hashes.

    A CRC is linear. Without the finalizer, similar sets of rows, such as the numbers 10 to 17 and 20 to 27, would often
    have the same sum.
    """
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
