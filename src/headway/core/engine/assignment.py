"""One partition while it is assigned: from `assign` to `revoke`, or until a seek moves it to another offset.

Invariants: an assignment that has ended never becomes current again, so its works stay stale. Its bytes are the sizes
of its incomplete works, and of its outputs with their works. A finished work with outputs is in both the progress and
`outputs`, or in neither.

Failed attempts are counted here for the commits. `tried` has those of received records, and `earlier` has those that an
earlier owner committed for records that have not arrived yet. A record that is done leaves `tried` only with the next
commit, so that a record that never fails costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from headway.core.engine.lanes import Lanes
from headway.core.engine.partition_states import PartitionEvent, PartitionState, after
from headway.core.engine.work import FailedAttempts, Work
from headway.core.offsets.offset_map import LEAST_WINDOW, MAX_CHARACTERS, Commit, OffsetMap, commit_of, pressure
from headway.core.offsets.progress import Progress
from headway.core.offsets.trailer import NOTHING_TRIED, Trailer, Tried
from headway.errors import EarlierAttemptError
from headway.records.record_types import TopicPartition

R = TypeVar("R")

OutputSet = tuple[Sequence[int], int, Sequence[Any]]
"""The outputs of a record, or of a batch: (offsets, bytes of records and outputs, outputs)."""

# Encoding a map can take some milliseconds. A change (a record was received or is done) seldom adds more than one
# character. So the next measurement is due after as many changes as there were characters left, and at least this many.
_MEASURE_EVERY = 512

_MOST_BESIDE = 33  # bytes besides a map: its trailer without attempts, and the frames of compressed run lengths

_NOT_KEPT = "its earlier attempts were made before a restart, a rebalance or a seek, and only their number was kept"


class Assignment(Generic[R]):
    """The state of one assignment of a partition."""

    __slots__ = (
        "_few",
        "_known_end",
        "_map_limit",
        "_measure_at",
        "_narrow",
        "bytes",
        "earlier",
        "epoch",
        "finished",
        "held",
        "lanes",
        "level",
        "log",
        "of_outputs",
        "outputs",
        "partition",
        "pressed",
        "progress",
        "remembered",
        "saved",
        "state",
        "tried",
        "withheld",
    )

    def __init__(
        self,
        partition: TopicPartition,
        committed: OffsetMap,
        epoch: int,
        map_limit: int = MAX_CHARACTERS,
        log: bytes = b"",
        earlier: Mapping[int, Tried] = NOTHING_TRIED,
    ) -> None:
        self.partition = partition
        self.level = partition.level
        self.epoch = epoch
        self.state = PartitionState.READING
        self.progress = Progress(committed)
        self.remembered = committed  # as of the last commit that succeeded
        self.log = log  # the mark of the topic's id; empty if not known
        self.earlier = earlier
        self.tried: dict[int, Tried] = {}
        self.lanes: Lanes[R] = Lanes()
        self.bytes = 0
        self.of_outputs = 0  # the bytes of `bytes` that outputs and their records take
        self.withheld = 0  # the bytes of `of_outputs` that no commit can contain yet
        self.finished = 0  # grows with each change that should be committed
        self.saved = 0  # `finished` as of the last commit that succeeded
        self.outputs: list[OutputSet] = []  # since the last tick
        self.pressed = False
        self.held: list[Work[R]] | None = None  # the heads of its lanes while it is held; otherwise None
        self._known_end = committed.end
        self.limit_map(map_limit)

    @property
    def current(self) -> bool:
        """True until the assignment has ended."""
        return self.state is not PartitionState.GONE

    def on(self, event: PartitionEvent) -> None:
        """Change the state by an event, as in the table of partition states."""
        self.state = after(self.state, event)

    def limit_map(self, characters: int) -> None:
        """Limit the map to this many characters from now on."""
        self._map_limit = characters
        self._measure_at = 0
        # A map is below the pressure limit if its bitset is, or if its runs of four bytes each are. So most partitions
        # need no measurement.
        size = max(0, pressure(characters) // 4 * 3 - _MOST_BESIDE)  # bytes
        self._narrow = max(LEAST_WINDOW, 8 * (size - 7))  # offsets
        self._few = max(0, size - 1) // 8  # incomplete offsets; each makes at most two runs

    def finish(self, work: Work[R], outputs: Sequence[Any], size: int) -> None:
        """Mark a work as done, with all its outputs, which take `size` bytes and keep the work's record in memory."""
        self.progress.complete(work.offset)
        self.finished += 1
        if outputs:
            self.outputs.append(((work.offset,), size + work.size, outputs))
            self.bytes += size
            self.of_outputs += size + work.size
        else:
            self.bytes -= work.size

    def finish_together(self, works: Sequence[Work[R]], outputs: Sequence[Any], size: int) -> int:
        """Mark the works of a batch as done. Returns the bytes of its records and of its outputs (`size` bytes)."""
        offsets = [work.offset for work in works]
        for offset in offsets:
            self.progress.complete(offset)
        self.finished += len(works)
        kept = size + sum(work.size for work in works)
        self.outputs.append((offsets, kept, outputs))
        self.bytes += size
        self.of_outputs += kept
        return kept

    def note_failure(self, offset: int, failure: FailedAttempts) -> None:
        """Record that an attempt failed. The next commit contains the count."""
        self.tried[offset] = Tried(failure.attempts, failure.untried)
        self.finished += 1

    def recall(self, works: Sequence[Work[R]], now: float) -> None:
        """Give received works the failed attempts that an earlier owner committed."""
        end = works[-1].offset + 1
        for work in works:
            tried = self.earlier.get(work.offset)
            if tried is None:
                continue
            self.tried[work.offset] = tried
            if work.failure is None:
                error = EarlierAttemptError("headway.EarlierAttemptError", _NOT_KEPT)
                work.failure = FailedAttempts(error, now, now, tried.attempts, tried.untried, error)
            elif (
                work.failure.attempts < tried.attempts
            ):  # after `RetryLater` the record's headers have earlier attempts
                work.failure = work.failure._replace(attempts=tried.attempts, untried=tried.untried)
        self.earlier = {offset: tried for offset, tried in self.earlier.items() if offset >= end}

    def all_tried(self) -> Mapping[int, Tried]:
        """Return the failed attempts of all records that are not done, received or not."""
        if not self.tried and not self.earlier:
            return NOTHING_TRIED
        is_done = self.progress.is_done
        self.tried = {offset: tried for offset, tried in self.tried.items() if not is_done(offset)}
        to_come = {offset: tried for offset, tried in self.earlier.items() if not is_done(offset)}
        return to_come | self.tried

    def commit_of(self, snapshot: OffsetMap) -> Commit:
        """Build the commit for a snapshot. Offsets that an earlier commit marked as done stay marked."""
        trailer = Trailer(snapshot.offset, self.log, self.all_tried())
        commit = commit_of(snapshot, self._map_limit, self.remembered, trailer)
        self.pressed = commit.pressed
        left = 0 if commit.pressed else pressure(self._map_limit) - len(commit.metadata)
        self._measure_at = self.progress.end + self.finished + max(_MEASURE_EVERY, left)
        return commit

    def is_pressed(self) -> bool:
        """Return whether the map is so large that new records could make it exceed its limit.

        Records that a commit's map covers are not new. They must be received, or the pressure would never ease.
        """
        if self._cannot_be_pressed():
            self.pressed = False
        elif self.progress.end + self.finished >= self._measure_at:
            self.commit_of(self.progress.snapshot())
        return self.pressed

    def _cannot_be_pressed(self) -> bool:
        progress = self.progress
        if progress.end < self._known_end:
            return True
        incomplete = progress.incomplete_count
        return incomplete <= self._few or progress.highest_complete - progress.committable < self._narrow

    def end(self) -> None:
        """End the assignment, because the partition was revoked or lost, or is read from another offset."""
        self.on(PartitionEvent.ENDED)
        self.lanes.clear()
        self.held = None
        self.outputs.clear()
