"""A digest of the rows of one task, by which the sink knows them when they come again.

After a shuffle the same rows come in another order. So each row is hashed alone, and the hashes are added up.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from headway.kafka.row_producer import Columns

_encode = msgspec.msgpack.Encoder().encode
_MOST = 2**64 - 1


class RowsDigest:
    """Counts rows and digests them, in any order.

    Two rows have the same hash once in 2**32: CRC-32 is what Python has for a tenth of a microsecond.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(
        self, columns: Columns, due: Sequence[int | None] | None = None, identities: Sequence[Any] | None = None
    ) -> None:
        """Take rows in. With `identities` these alone tell the rows apart, and not what is written."""
        rows: Iterable[Any] = (
            identities
            if identities is not None
            # The first is the one that has an end.
            else zip(
                columns.values,
                columns.keys,
                columns.topics,
                columns.partitions,
                columns.headers or repeat(None),
                due or repeat(None),
                strict=False,
            )
        )
        hashes = np.fromiter(map(crc32, map(_encode, rows)), np.uint64, columns.rows)
        self.rows += columns.rows
        self._sum = (self._sum + int(_mixed(hashes).sum())) & _MOST

    def __str__(self) -> str:
        return f"{self.rows}:{self._sum:016x}"


def _mixed(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the hashes through the finalizer of SplitMix64.

    A checksum is linear: without it, the sums over 10 to 17 and over 20 to 27 are often equal.
    """
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
