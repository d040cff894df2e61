"""One partition while it is assigned: from `assign` to `revoke`, or until a seek moves it to another offset.

Invariants: an assignment that has ended never becomes current again, so its attempts stay stale. The `bytes` of an
assignment are the sizes of its records that are not done, and of its uncommitted outputs with their records. If an
attempt finishes with outputs, the progress and `outputs` change together.

An assignment also counts failed attempts, because commits contain them. `tried` has the failed attempts of received
records. `earlier` has the failed attempts of records that have not arrived yet; an earlier owner of the partition
committed them. Records that are done are removed from `tried` only when the next commit is built, so that a record that
never fails costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from headway.core.engine.attempt import Attempt, FailedAttempts
from headway.core.engine.lanes import Lanes
from headway.core.engine.partition_states import PartitionEvent, PartitionState, after
from headway.core.offsets.offset_map import LEAST_WINDOW, MAX_CHARACTERS, Commit, OffsetMap, commit_of, encode, pressure
from headway.core.offsets.progress import Progress
from headway.core.offsets.trailer import NOTHING_TRIED, Trailer, Tried
from headway.errors import EarlierAttemptError
from headway.records.record_types import TopicPartition

R = TypeVar("R")

OutputSet = tuple[Sequence[int], int, Sequence[Any]]
"""The outputs of a record or of a batch, as (offsets, bytes of the records and the outputs, outputs)."""

# The minimum number of changes before the offset map is measured again. Encoding a map can take some milliseconds, and
# a change, such as a received or finished record, seldom adds more than one character to the map. So if more characters
# than this were left below the limit, the map is measured again after that many changes.
_MEASURE_EVERY = 512

# A map above the limit shrinks only when records finish. So it is measured again after one in this many of its
# incomplete records has finished. The time to measure a map is proportional to the number of its runs, so with a fixed
# interval, each record of a large map would take more time than each record of a small one.
_MEASURE_AFTER_ONE_IN = 8

# A map that takes at least this fraction of its space is measured exactly, without the attempts.
_NEARLY_FULL = 0.8

# How many bytes a commit's metadata can have besides the map: a trailer without attempts, and the frames of compressed
# runs.
_MOST_BESIDE = 33

_NOT_KEPT = "its earlier attempts were made before a restart, a rebalance or a seek, and only their number was kept"


class PartitionProgress(NamedTuple):
    """The progress of an assigned partition at one moment.

    Attributes:
        partition: The partition.
        epoch: The number of the assignment.
        is_full: True if nothing is fetched because the partition's share of memory is full or its map is too large.
        is_pressed: True if the offset map is near its limit.
        committed: The offset of the last successful commit.
        committable: The lowest offset that is not done.
        highest_done: The highest offset that is done; if no received offset is done, it is lower than all of them.
        end: The next offset to receive.
        incomplete: The number of received records that are not done.
        unread: The number of offsets from the reading position to the end of the log that are not done, or None if one
            of the two is not known.
        map_characters: The size of the offset map when it was last encoded.
        lanes: The number of lanes with names that have records.
    """

    partition: TopicPartition
    epoch: int
    is_full: bool
    is_pressed: bool
    committed: int
    committable: int
    highest_done: int
    end: int
    incomplete: int
    unread: int | None
    map_characters: int
    lanes: int


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
        "map_characters",
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
        self.remembered = committed  # the progress that the last successful commit has stored
        # The part of the topic's id that identifies its log (see `log_mark`), or empty bytes if the id is not known.
        self.log = log
        self.earlier = earlier
        self.tried: dict[int, Tried] = {}
        self.lanes: Lanes[R] = Lanes()
        self.bytes = 0
        self.of_outputs = 0  # how many of the `bytes` are taken by uncommitted outputs and their records
        self.withheld = 0  # the bytes of outputs, with their records, that cannot be part of a commit yet
        self.finished = 0  # a counter of the changes that should be committed
        self.saved = 0  # the value of `finished` in the last successful commit
        self.outputs: list[OutputSet] = []  # outputs that are not committed yet
        self.map_characters = 0  # the size of the offset map when it was last encoded
        self.pressed = False  # whether the offset map was near its limit when it was last measured
        self.held: list[Attempt[R]] | None = None  # the heads of the lanes while the partition is held; otherwise None
        self._known_end = committed.end
        self.limit_map(map_limit)

    @property
    def current(self) -> bool:
        """True until the assignment has ended."""
        return self.state is not PartitionState.GONE

    def map_fullness(self) -> float:
        """Return the size of the offset map as a fraction of the size at which the partition receives no new records.

        The attempts that a commit also contains do not count, because they give way to the map. The map is measured
        only if the last commit was large enough.
        """
        most = max(1, pressure(self._map_limit))
        if self.map_characters < _NEARLY_FULL * most:
            return self.map_characters / most
        return len(encode(self.progress.snapshot())) / most

    def on(self, event: PartitionEvent) -> None:
        """Change to the state that follows this event in the table of partition states."""
        self.state = after(self.state, event)

    def limit_map(self, characters: int) -> None:
        """Limit the offset map to this many characters from now on."""
        self._map_limit = characters
        self._measure_at = 0
        # A partition receives no new records if its map has more than `pressure(characters)` characters. A map is
        # encoded as a bitset or as run lengths of at most four bytes, whichever is shorter. So the map is not measured
        # if one of these encodings is certainly smaller than that, which is true for most partitions.
        size = max(0, pressure(characters) // 4 * 3 - _MOST_BESIDE)  # a smaller map, in bytes, is never too large
        self._narrow = max(LEAST_WINDOW, 8 * (size - 7))  # a bitset for fewer offsets than this is smaller than `size`
        # this many incomplete offsets make at most twice as many runs, which fit in `size`
        self._few = max(0, size - 1) // 8

    def finish(self, attempt: Attempt[R], outputs: Sequence[Any], size: int) -> None:
        """Mark an attempt's record as done.

        The outputs take `size` bytes; until they are committed, the record stays in memory.
        """
        self.progress.complete(attempt.offset)
        self.finished += 1
        if outputs:
            self.outputs.append(((attempt.offset,), size + attempt.size, outputs))
            self.bytes += size
            self.of_outputs += size + attempt.size
        else:
            self.bytes -= attempt.size

    def finish_together(self, attempts: Sequence[Attempt[R]], outputs: Sequence[Any], size: int) -> int:
        """Mark the records of a batch as done. The outputs of the batch take `size` bytes.

        Returns the total size of the outputs and the records.
        """
        offsets = [attempt.offset for attempt in attempts]
        for offset in offsets:
            self.progress.complete(offset)
        self.finished += len(attempts)
        kept = size + sum(attempt.size for attempt in attempts)
        self.outputs.append((offsets, kept, outputs))
        self.bytes += size
        self.of_outputs += kept
        return kept

    def finish_ahead(self, offset: int, outputs: Sequence[Any], size: int) -> None:
        """Mark a record as done that has not been received. The outputs, at least one, take `size` bytes."""
        self.progress.complete_ahead(offset)
        self.finished += 1
        self.outputs.append(((offset,), size, outputs))
        self.bytes += size
        self.of_outputs += size

    def note_failure(self, offset: int, failure: FailedAttempts) -> None:
        """Record that an attempt at the record with this offset failed. The next commit contains the count."""
        self.tried[offset] = Tried(failure.attempts, failure.untried)
        self.finished += 1

    def recall(self, attempts: Sequence[Attempt[R]], now: float) -> None:
        """Add to received records the failed attempts that an earlier owner of the partition committed."""
        end = attempts[-1].offset + 1
        for attempt in attempts:
            tried = self.earlier.get(attempt.offset)
            if tried is None:
                continue
            self.tried[attempt.offset] = tried
            if attempt.failure is None:
                error = EarlierAttemptError("headway.EarlierAttemptError", _NOT_KEPT)
                attempt.failure = FailedAttempts(error, now, now, tried.attempts, tried.untried, error)
            # the headers count only the attempts before the last `RetryLater`
            elif attempt.failure.attempts < tried.attempts:
                attempt.failure = attempt.failure._replace(attempts=tried.attempts, untried=tried.untried)
        self.earlier = {offset: tried for offset, tried in self.earlier.items() if offset >= end}

    def all_tried(self) -> Mapping[int, Tried]:
        """Return the failed attempts of all records that are not done, even if they have not been received yet."""
        if not self.tried and not self.earlier:
            return NOTHING_TRIED
        is_done = self.progress.is_done
        self.tried = {offset: tried for offset, tried in self.tried.items() if not is_done(offset)}
        to_come = {offset: tried for offset, tried in self.earlier.items() if not is_done(offset)}
        return to_come | self.tried

    def commit_of(self, snapshot: OffsetMap) -> Commit:
        """Build the commit for a snapshot of the progress. Offsets marked as done by earlier commits stay marked."""
        trailer = Trailer(snapshot.offset, self.log, self.all_tried())
        commit = commit_of(snapshot, self._map_limit, self.remembered, trailer)
        self.pressed = commit.pressed
        self.map_characters = len(commit.metadata)
        if commit.pressed:
            changes = self.progress.incomplete_count // _MEASURE_AFTER_ONE_IN
        else:
            changes = pressure(self._map_limit) - len(commit.metadata)
        self._measure_at = self.progress.end + self.finished + max(_MEASURE_EVERY, changes)
        return commit

    def is_pressed(self) -> bool:
        """Return whether the offset map is so large that new records could make it exceed its limit.

        Records that the committed map covers are not new. These records must be received even if the map is large,
        because otherwise the map could not shrink.
        """
        if self._cannot_be_pressed():
            self.pressed = False
        elif self.progress.end + self.finished >= self._measure_at:
            self.commit_of(self.progress.snapshot())
        return self.pressed

    def observe(self, position: int | None, log_end: int | None) -> PartitionProgress:
        """Return the progress. `position` is the next offset to fetch, which can be after records in a buffer."""
        progress = self.progress
        known = position is not None and log_end is not None
        return PartitionProgress(
            partition=self.partition,
            epoch=self.epoch,
            is_full=self.state is PartitionState.PAUSED,
            is_pressed=self.pressed,
            committed=self.remembered.offset,
            committable=progress.committable,
            highest_done=progress.highest_complete,
            end=progress.end,
            incomplete=progress.incomplete_count,
            unread=progress.unread(position or 0, log_end or 0) if known else None,
            map_characters=self.map_characters,
            lanes=len(self.lanes),
        )

    def _cannot_be_pressed(self) -> bool:
        progress = self.progress
        if progress.end < self._known_end:
            return True
        incomplete = progress.incomplete_count
        return incomplete <= self._few or progress.highest_complete - progress.committable < self._narrow

    def end(self) -> None:
        """End the assignment because the partition was revoked or lost, or is now read from another offset."""
        self.on(PartitionEvent.ENDED)
        self.lanes.clear()
        self.held = None
        self.outputs.clear()
