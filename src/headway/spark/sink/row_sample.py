"""A sample of a task's rows, by which a task finds out that its rows were written before in another division.

The number of a task says nothing about its rows once they are divided differently, as on other cores. Then a task
without its own marker must find out whether its rows were written under another number. All hashes of all rows would
take as much space as small rows do. So a marker holds those with the lowest values, which are a random sample.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 128
_BYTES = 8

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

RowsAt = Callable[[Places], Iterable[bytes]]
"""Returns the rows at some places, in order, as the bytes that hashes are computed from."""


class RowSample:
    """The rows with the lowest hashes among all that were added, without those that were added twice."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # by hash: the fingerprint, and how often it was added
        self._limit: int | None = None  # rows with a higher hash are ignored

    def add(self, checksums: Hashes, hashes: Hashes, rows_at: RowsAt) -> None:
        """Add rows: the CRC-32 of each, its hash, and the bytes that these were computed from."""
        limit = self._limit
        if limit is None and len(hashes) > _MOST:
            limit = int(np.partition(hashes, _MOST)[_MOST])
        places = np.arange(len(hashes)) if limit is None else np.flatnonzero(hashes <= np.uint64(limit))
        if not len(places):
            return
        lowest, first, counts = np.unique(hashes[places], return_index=True, return_counts=True)
        chosen = places[first[:_MOST]]
        fingerprints = dict(
            zip(hashes[np.sort(chosen)].tolist(), _fingerprints(checksums, chosen, rows_at), strict=True)
        )
        for value, count in zip(lowest[:_MOST].tolist(), counts.tolist(), strict=False):
            fingerprint, before = self._seen.get(value, (fingerprints[value], 0))
            self._seen[value] = fingerprint, before + count
        if len(self._seen) > _MOST:
            self._seen = dict(sorted(self._seen.items())[:_MOST])
        if len(self._seen) == _MOST:
            self._limit = max(self._seen)

    def encode(self) -> bytes:
        """Encode the fingerprints of the rows for a marker."""
        once = [fingerprint for fingerprint, count in self._seen.values() if count == 1]
        return np.array(sorted(once), dtype="<u8").tobytes()


class SampledRows:
    """The rows in the samples of other parts, and how many of them were seen among a task's own rows."""

    def __init__(self, samples: Iterable[bytes]) -> None:
        whole = b"".join(sample[: len(sample) // _BYTES * _BYTES] for sample in samples)
        self._known = np.frombuffer(whole, dtype="<u8").astype(np.uint64)
        self._checksums = self._known >> np.uint64(32)
        self._fingerprints = set(self._known.tolist())
        self._seen: Counter[int] = Counter()

    def look(self, checksums: Hashes, rows_at: RowsAt) -> None:
        """Look for known rows among these."""
        if self._fingerprints:
            places = np.flatnonzero(np.isin(checksums, self._checksums))
            found = _fingerprints(checksums, places, rows_at)
            self._seen.update(filter(self._fingerprints.__contains__, found))

    @property
    def seen(self) -> int:
        """How many known rows were seen exactly once. If rows are identical, seeing one again proves nothing."""
        return sum(1 for count in self._seen.values() if count == 1)


def in_common(sample: bytes, other: bytes) -> bool:
    """Return whether two samples have a row in common."""
    found: Any = np.intersect1d(np.frombuffer(sample, "<u8"), np.frombuffer(other[: len(other) // 8 * 8], "<u8"))
    return bool(found.size)


def _fingerprints(checksums: Hashes, places: Places, rows_at: RowsAt) -> list[int]:
    """Return the fingerprints of the rows at these places, in ascending order of places."""
    # A 32-bit checksum alone would match some row of another part in every large one.
    return [
        checksum << 32 | int.from_bytes(blake2b(row, digest_size=4).digest(), "little")
        for checksum, row in zip(checksums[np.sort(places)].tolist(), rows_at(places), strict=True)
    ]
