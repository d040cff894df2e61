"""Follows one partition of a queue from one reading to the next."""

from collections.abc import Mapping
from typing import NamedTuple

from headway.core.offsets.commit_metadata import CommitMetadata, Done, read_metadata
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried
from headway.inspection.rates_and_ages import SeenEnds
from headway.inspection.snapshot import PartitionStatus, StuckRecord
from headway.kafka.binding.capi import CommittedOffset
from headway.records.history import counts_for, history_of
from headway.records.record_types import Header, Message, headers_of

COMMITS_EVERY = 5.0
"""The default time between two commits of a member, in seconds."""

_READ_AGAIN_AFTER = 10.0  # the seconds between two looks at how old the oldest record of a partition is
_LOOKED_AT_EARLIER = 5.0  # a record that held the commit back for this long is worth a look
_COUNT_AGAIN_AFTER = 60.0  # seconds
_MOST_OF_A_KEY = 256  # bytes
_MOST_OF_A_HEADER = 512
_MOST_HEADERS = 32


class RecordFacts(NamedTuple):
    """What is kept of a record that was read: everything except its value. Long parts are cut off."""

    timestamp: float | None = None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    size: int | None = None
    attempts: int = 0
    last_error: str | None = None

    @classmethod
    def of(cls, message: Message, group: str) -> "RecordFacts":
        """Take the facts from a fetched record. Attempts that another group made do not count."""
        headers, milliseconds = headers_of(message), message.timestamp()[1]
        history = history_of(headers, message.topic() or "")
        if history is not None and not counts_for(history, group):
            history = None
        error = history.last if history else None
        kept = ((name, value[:_MOST_OF_A_HEADER] if value else value) for name, value in headers[:_MOST_HEADERS])
        key, value = message.key(), message.value()
        return cls(
            timestamp=milliseconds / 1000 if milliseconds > 0 else None,
            key=None if key is None else key[:_MOST_OF_A_KEY],
            headers=tuple(kept),
            size=None if value is None else len(value),
            attempts=history.attempts if history else 0,
            last_error=f"{error.exception}: {error.message}" if error else None,
        )


class SameKey(NamedTuple):
    """How many of the `looked_at` records after a stuck one are `waiting`: they have its key and are not done."""

    waiting: int
    looked_at: int


class PartitionWatch:
    """The state of a partition as of the latest reading, and since when it has been so.

    Args:
        partition: The number of the partition.
        now: The time of the first reading, in seconds since the epoch.
        every: The seconds between two readings. The lowest offset that is not done counts as standing still if it did
            not change although a commit must have been seen.
        was_there: Whether a member that has the partition at first has had it for longer.
    """

    def __init__(self, partition: int, now: float, every: float, *, was_there: bool) -> None:
        self.partition = partition
        self._stands_still_after = COMMITS_EVERY + every + 0.5
        self.ends_seen = SeenEnds()
        self.log_start = self.log_end = self.lowest = 0
        self._committed: CommittedOffset | None = None
        self._metadata = CommitMetadata("none")
        self._map = OffsetMap(0)
        self._done = Done(self._map)
        self.done_ahead = 0  # the number of offsets after the lowest one that are done
        self._first = self._moved = self._lowest_since = now
        self._member: str | None = None
        self._member_since: float | None = None
        self._member_was_there = self._is_first = was_there
        self._facts: RecordFacts | None = None
        self._facts_of, self._facts_at = -1, 0.0
        self._same_key: SameKey | None = None
        self._counted_at = 0.0

    def see(
        self,
        now: float,
        bounds: tuple[int, int],
        commit: CommittedOffset | None,
        member: str | None,
        log: bytes | None = None,
    ) -> None:
        """Take in a reading: where the log starts and ends, what is committed, and the member that has the partition.

        `log` is the mark of the topic's id, or None if it is not known.
        """
        waited = self.not_done > 0
        self.log_start, self.log_end = bounds
        self.ends_seen.see(now, self.log_end)
        if commit != self._committed:
            self._committed, self._moved = commit, now
        offset, text = commit or (self.log_start, b"")
        self._metadata = read_metadata(text, offset, self.log_end, log)
        self._map = self._metadata.offset_map or OffsetMap(offset)
        self._done = Done(self._map)
        lowest = self._lowest()
        if lowest != self.lowest or not waited:  # without a record, there was nothing that could stand still
            self.lowest, self._lowest_since = lowest, now
            self._same_key, self._counted_at = None, 0.0
        self.done_ahead = sum(len(range(max(each.start, lowest), each.stop)) for each in self._map.complete)
        if member != self._member:
            self._member, self._member_since = member, None if member is None else now
            self._member_was_there = self._is_first
        self._is_first = False

    def _lowest(self) -> int:
        """Return the lowest offset that is not done and was not deleted, which may be the end of the log."""
        lowest = max(self._map.offset, self.log_start)
        for done in self._map.complete:
            if lowest in done:
                return done.stop
        return lowest

    @property
    def not_done(self) -> int:
        """The number of offsets that are not done."""
        return max(0, self.log_end - self.lowest - self.done_ahead)

    @property
    def tried(self) -> Mapping[int, Tried]:
        """The failed attempts that are stored with the commit."""
        return self._metadata.trailer.tried if self._metadata.trailer else {}

    def urgency(self, now: float) -> int | None:
        """Return how urgent it is to read the lowest record that is not done: 0 is most urgent, None not at all."""
        if not self.not_done or self._facts_of == self.lowest:
            return None
        if self.lowest in self.tried:
            return 0
        if now - self._lowest_since >= _LOOKED_AT_EARLIER:
            return 1
        if self.done_ahead and now == self._first:
            return 2
        is_known = self.ends_seen.time_of(self.lowest) is not None
        return None if is_known or now - self._facts_at < _READ_AGAIN_AFTER else 3

    def has_read(self, now: float, offset: int, facts: RecordFacts | None) -> None:
        """Take in the record at an offset, or None if there is no record."""
        self._facts, self._facts_of, self._facts_at = facts, offset, now

    def to_count(self, now: float, most: int) -> tuple[int, int] | None:
        """Return the offsets to read to count the records with the stuck one's key, or None if that is done."""
        is_due = now - self._counted_at >= _COUNT_AGAIN_AFTER and self._stands_still(now)
        if not (is_due and self.not_done > 1 and self.key is not None):
            return None
        return self.lowest + 1, min(self.log_end, self.lowest + 1 + most)

    @property
    def key(self) -> bytes | None:
        """The key of the lowest record that is not done, if it was read."""
        return self._facts.key if self._facts and self._facts_of == self.lowest else None

    def counts(self, offset: int, key: bytes | None) -> bool:
        """Return whether the record at an offset has the stuck one's key and is not done."""
        return key is not None and key[:_MOST_OF_A_KEY] == self.key and offset not in self._done

    def has_counted(self, now: float, same_key: SameKey) -> None:
        """Take in how many records have the key of the stuck one."""
        self._same_key, self._counted_at = same_key, now

    def status(self, now: float) -> PartitionStatus:
        """Return the state as a value for a snapshot."""
        return PartitionStatus(
            partition=self.partition,
            log_start=self.log_start,
            log_end=self.log_end,
            committed=self._committed[0] if self._committed else None,
            offset_map=self._map,
            not_done=self.not_done,
            moved=self._moved,
            tried=self.tried,
            reason=self._metadata.reason,
            member=self._member,
            since=self._member_since,
            was_there=self._member_was_there,
            oldest=self._oldest() if self.not_done else None,
            stuck=self._stuck(now),
        )

    def _oldest(self) -> float | None:
        """Return when the oldest record that is not done was written.

        If that record was not read, the time at which it arrived is known if it arrived while the partition was
        watched. Otherwise, it is younger than the record that was read before.
        """
        if (facts := self._facts) and self._facts_of == self.lowest and facts.timestamp is not None:
            return facts.timestamp
        arrived = self.ends_seen.time_of(self.lowest)
        return arrived if arrived is not None else facts.timestamp if facts else None

    def _stands_still(self, now: float) -> bool:
        # Without a member, all partitions of the group stand still, and no record is the reason for that.
        return self._member is not None and now - self._lowest_since >= self._stands_still_after

    def _stuck(self, now: float) -> StuckRecord | None:
        stands_still = self._stands_still(now)
        if not self.not_done or not (self.done_ahead or stands_still or self.lowest in self.tried):
            return None
        facts = self._facts if self._facts and self._facts_of == self.lowest else RecordFacts()
        tried = self.tried.get(self.lowest, Tried(0))
        return StuckRecord(
            offset=self.lowest,
            since=self._lowest_since,
            attempts=max(tried.attempts, facts.attempts),
            behind=self.not_done - 1,
            done_ahead=self.done_ahead,
            stands_still=stands_still,
            timestamp=facts.timestamp,
            key=facts.key,
            headers=facts.headers,
            size=facts.size,
            last_error=facts.last_error,
            behind_same_key=self._same_key.waiting if self._same_key else None,
            looked_at=self._same_key.looked_at if self._same_key else 0,
        )
