"""Holds the rows of a task until they are put out, that is, yielded to Spark with their outcomes. Limits their memory.

Invariants:
- Each row is put out exactly once, with the columns of its outcome.
- A few remaining rows do not keep a large batch in memory: if the rows take too much memory, batches are copied without
  the rows that are already put out.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter

import pyarrow as pa  # type: ignore[import-untyped]

from headway.spark.stage.input_batch import InputBatch, StageRow
from headway.spark.stage.outcomes import OutcomeColumns, RowOutcome

# The next three limits are numbers of bytes, and apply only to rows and results that are not put out yet.
MOST_ROW_BYTES = 256 * 2**20  # if the rows take more, the task reads no further rows
SHRINK_AT = 64 * 2**20  # if the rows take more, done rows are put out at once, and batches are copied without them
MOST_RESULT_BYTES = 64 * 2**20  # if the results take more, no handler is called
_NEVER = 2**62  # a number of outcomes that no task reaches


class HeldRows:
    """The rows of a task that are not put out yet, and the outcomes of the rows that are done.

    One thread adds batches and puts rows out. Any thread can add an outcome.

    Args:
        columns: Makes the columns of the outcomes.
        wake: Called when there are as many outcomes as the task waits for, or when the results take too much memory.
        pause: Called for each result, with True if the results that are not put out yet take too much memory, and with
            False otherwise.
    """

    def __init__(self, columns: OutcomeColumns, wake: Callable[[], None], pause: Callable[[bool], None]) -> None:
        self._columns = columns
        self._wake = wake
        self._pause = pause
        self._wake_at = _NEVER
        self._batches: dict[InputBatch, None] = {}  # the batches with rows that are not put out yet
        self._outcomes: deque[tuple[StageRow, RowOutcome]] = deque()
        self._counting = threading.Lock()  # protects the bytes of results
        self._result_bytes = 0  # the size of the results in `_outcomes`
        self._is_full = False
        self.received = self._emitted = 0

    @property
    def waiting(self) -> int:
        """The number of rows that are not put out yet."""
        return self.received - self._emitted

    def add(self, batch: InputBatch) -> None:
        """Add a batch, whose rows follow all rows that were added before."""
        self._batches[batch] = None
        self.received += batch.left

    def have_space(self) -> bool:
        """Return whether there is memory for more rows. If the rows take much memory, batches are shrunk first."""
        kept = self._bytes()
        if kept > SHRINK_AT:
            for batch in self._batches:
                batch.shrink()
            kept = self._bytes()
        return kept <= MOST_ROW_BYTES

    def _bytes(self) -> int:
        return sum(batch.size for batch in self._batches)

    def put(self, row: StageRow, outcome: RowOutcome) -> None:
        """Add the outcome of a row, so that the row can be put out."""
        self._outcomes.append((row, outcome))
        if outcome.size:
            self._count(outcome.size)
        if len(self._outcomes) >= self._wake_at or self._is_full:
            self._wake_at = _NEVER
            self._wake()

    def _count(self, size: int) -> None:
        with self._counting:
            self._result_bytes += size
            self._is_full = self._result_bytes > MOST_RESULT_BYTES
            self._pause(self._is_full)

    def wake_at(self, outcomes: int) -> bool:
        """Arrange that `wake` is called when there are this many outcomes, or when all rows are done.

        Returns True if that is already the case.
        """
        self._wake_at = min(outcomes, self.waiting)
        return len(self._outcomes) >= self._wake_at

    def put_out(self, at_least: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are done, with their outcomes.

        If there are fewer than `at_least`, nothing is yielded, unless rows or results take too much memory.
        """
        left = len(self._outcomes)
        if left < at_least and not self._is_full and self._bytes() <= SHRINK_AT:
            return
        while left > 0:
            groups = self._grouped(left)
            count = sum(map(len, groups.values()))
            left -= count
            self._emitted += count
            # In the order of the input, so that a row never comes out before an earlier row of its key.
            for batch in sorted(groups, key=attrgetter("first")):
                yield self._with_outcomes(batch, groups[batch])

    def _grouped(self, most: int) -> Mapping[InputBatch, Sequence[tuple[StageRow, RowOutcome]]]:
        """Remove up to `most` outcomes, and group them by the batches of their rows.

        If results are large, fewer outcomes are removed.
        """
        groups: dict[InputBatch, list[tuple[StageRow, RowOutcome]]] = defaultdict(list)
        size = 0
        for _ in range(most):
            added = self._outcomes[0][1].size
            if added:
                if size and size + added > MOST_RESULT_BYTES:
                    break
                size += added
            each = self._outcomes.popleft()
            groups[each[0].batch].append(each)
        self._count(-size)
        return groups

    def _with_outcomes(self, batch: InputBatch, group: Sequence[tuple[StageRow, RowOutcome]]) -> pa.RecordBatch:
        rows = batch.put_out([row for row, _ in group])
        if not batch.left:
            del self._batches[batch]
        added = self._columns.arrays([outcome for _, outcome in group])
        return pa.RecordBatch.from_arrays([*rows, *added], names=[*batch.names, *self._columns.names])
