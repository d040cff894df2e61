"""Samples the rows of tasks, so that a task can recognise rows that an earlier run has written in other tasks.

When rows are divided into tasks differently than in an earlier run, for example because the number of cores has
changed, a task no longer has the rows that the task with its number had in the earlier run. So a task without a marker
of its own must find out whether a task with another number has written its rows. The hashes of all rows would take as
much space as small rows do, so a marker contains only the lowest hashes, which are a random sample.
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
"""A function that returns the rows at the given indices, in ascending order, encoded as bytes for hashing."""


class RowSample:
    """A sample of the added rows: the rows with the lowest hashes, except those that were added more than once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # for each hash, the row's fingerprint and how often it was added
        self._limit: int | None = None  # rows with higher hashes are ignored

    def add(self, checksums: Hashes, hashes: Hashes, rows_at: RowsAt) -> None:
        """Add rows, given by their CRC-32 checksums, their hashes, and a function that returns their encoded bytes."""
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
        """Encode the fingerprints of the sampled rows for a marker."""
        once = [fingerprint for fingerprint, count in self._seen.values() if count == 1]
        return np.array(sorted(once), dtype="<u8").tobytes()


class SampledRows:
    """The rows in the samples of other tasks. `look` searches a task's rows for these, and counts them."""

    def __init__(self, samples: Iterable[bytes]) -> None:
        whole = b"".join(sample[: len(sample) // _BYTES * _BYTES] for sample in samples)
        self._known = np.frombuffer(whole, dtype="<u8").astype(np.uint64)
        self._checksums = self._known >> np.uint64(32)
        self._fingerprints = set(self._known.tolist())
        self._seen: Counter[int] = Counter()

    def look(self, checksums: Hashes, rows_at: RowsAt) -> None:
        """Search for sampled rows among these rows."""
        if self._fingerprints:
            places = np.flatnonzero(np.isin(checksums, self._checksums))
            found = _fingerprints(checksums, places, rows_at)
            self._seen.update(filter(self._fingerprints.__contains__, found))

    @property
    def seen(self) -> int:
        """The number of sampled rows that were found exactly once.

        A row that was found more than once does not count: if this task has several identical rows, the row that the
        other task has written may be another of them.
        """
        return sum(1 for count in self._seen.values() if count == 1)


def in_common(sample: bytes, other: bytes) -> bool:
    """Return whether two encoded samples have a row in common."""
    found: Any = np.intersect1d(np.frombuffer(sample, "<u8"), np.frombuffer(other[: len(other) // 8 * 8], "<u8"))
    return bool(found.size)


def _fingerprints(checksums: Hashes, places: Places, rows_at: RowsAt) -> list[int]:
    """Return the fingerprints of the rows at these indices, in ascending order of the indices."""
    # The 32-bit checksum alone is not enough: in every large task, the checksum of some row would by chance equal that
    # of a sampled row of another task.
    return [
        checksum << 32 | int.from_bytes(blake2b(row, digest_size=4).digest(), "little")
        for checksum, row in zip(checksums[np.sort(places)].tolist(), rows_at(places), strict=True)
    ]
