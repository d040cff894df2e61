"""A digest of the rows of one task, by which the sink recognizes them when they come again.

After a shuffle the same rows come in another order. So each row is hashed alone, and the hashes are added up.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from headway.kafka.producer.columnar import Columns

_encode = msgspec.msgpack.Encoder().encode
_MOST = 2**64 - 1


class RowsDigest:
    """The number of rows and a digest of them, in any order.

    Two rows have the same hash once in 2**32: Python computes a CRC-32 in a tenth of a microsecond.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._what = 0
        self._when: int | None = None
        self._last_identity: Any = None

    def add_identities(self, identities: Sequence[Any]) -> None:
        """Add the rows' identities instead of their content; a run of equal identities counts as one row.

        Such a run comes from one input row, and its length may differ from one attempt to the next.
        """
        before = chain([self._last_identity], identities)
        distinct = [each for each, last in zip(identities, before, strict=False) if each != last]
        if identities:
            self._last_identity = identities[-1]
        self.rows += len(distinct)
        self._what = _sum(self._what, _hashes(distinct, len(distinct)))

    def add(self, columns: Columns, due: Sequence[int | None] | None = None) -> None:
        """Add rows by the content that is written, and by their due times."""
        rows: Iterable[Any] = zip(
            columns.values,  # the first, since it has an end
            columns.keys,
            columns.topics,
            columns.partitions,
            columns.headers or repeat(None),
            strict=False,
        )
        what = _hashes(rows, columns.rows)
        self.rows += columns.rows
        self._what = _sum(self._what, what)
        if due is not None:
            self._when = _sum(self._when or 0, what ^ _hashes(due, columns.rows))

    @property
    def what(self) -> str:
        """The number of rows, and a digest of their contents and targets, as text."""
        return f"{self.rows}:{self._what:016x}"

    @property
    def when(self) -> str:
        """A digest of the rows' due times, as text; empty if no row has a due time of its own."""
        return "" if self._when is None else f":{self._when:016x}"


def _hashes(values: Iterable[Any], count: int) -> npt.NDArray[np.uint64]:
    return _mixed(np.fromiter(map(crc32, map(_encode, values)), np.uint64, count))


def _sum(sum_so_far: int, hashes: npt.NDArray[np.uint64]) -> int:
    # Mix once more: a hash may be made of two, as of a row and its due time, and the pairing must count.
    return (sum_so_far + int(_mixed(hashes).sum())) & _MOST


def _mixed(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the hashes after the finalizer of SplitMix64.

    A checksum is linear: without the finalizer, the sums over 10 to 17 and over 20 to 27 are often equal.
    """
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
