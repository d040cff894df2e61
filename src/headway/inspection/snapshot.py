"""What an `Inspector` has read: frozen values that refer to no client, and that can be shared between threads.

Times are in seconds since the epoch unless a name ends in `_ms`. None always means that a value is not known, never
that it is 0. Keys, headers and error texts come from records that any producer can have written, so whoever shows them
must escape them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried
from headway.records.record_types import Header


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of a consumer group, as the group's coordinator describes it.

    `since` is when the inspector first saw the member. If `was_there` is True, the member had joined before the
    inspector looked for the first time, so it has been there for longer than that.
    """

    group: str
    member_id: str
    client_id: str
    host: str
    partitions: int
    since: float
    was_there: bool


@dataclass(frozen=True, slots=True)
class StuckRecord:
    """The record that holds back the commit of its partition: the lowest offset that is not done.

    It is stuck if it `stands_still`. There is no other answer to when a record is stuck.

    Args:
        offset: Its offset.
        since: When the inspector first saw that this is the lowest offset that is not done.
        attempts: The failed attempts that the group has stored: in the trailer of its offset map, or in the record's
            history after a `RetryLater`. 0 means that no failed attempt is stored, so the record may be in its first
            attempt.
        timestamp: The record's own timestamp. None if the record has not been read yet, or no longer exists.
        key: The record's key. Long keys are cut off.
        headers: The record's headers. Long values are cut off.
        size: The bytes of the record's value. The value itself is not kept; `Inspector.record` reads it.
        last_error: The class name and the message of the last error, if the record carries them. Only a record that
            was sent again after a `RetryLater` or from a dead-letter topic does; retries in the same process leave
            their errors in the log of that process.
        behind: The records after it, in its partition, that are not done.
        behind_same_key: Those of the next `looked_at` records that are not done and have the same key. With an order by
            key, these are the records that wait for it. None if they were not counted.
        done_ahead: The records after it that are already done, which the commit cannot pass.
        stands_still: Whether the partition has a member, and this record has held back its commit for longer than the
            time between two commits. Then the record counts as stuck. Otherwise, it may just be handled now.
    """

    offset: int
    since: float
    attempts: int
    behind: int
    done_ahead: int
    stands_still: bool = False
    timestamp: float | None = None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    size: int | None = None
    last_error: str | None = None
    behind_same_key: int | None = None
    looked_at: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition of a level's Kafka topic, and how far the group has come in it.

    Args:
        partition: Its number.
        log_start: The first offset that was not deleted yet.
        log_end: The end offset.
        committed: The committed offset, or None if the group has committed nothing.
        offset_map: The offsets at or after the committed one that are done. It is empty without a map.
        not_done: The offsets that are not done, by the offset map. Offsets without a record, such as those of
            transaction markers, count as well.
        tried: The failed attempts in the trailer of the offset map, by offset.
        reason: Why the commit's metadata cannot be used, or None.
        member: The `member_id` of the member that has the partition, or None.
        since: When the inspector first saw that this member has the partition. None without a member.
        was_there: Whether the member already had it when the inspector looked for the first time.
        oldest: The timestamp of the oldest record that is not done, if it is known.
        moved: When the inspector last saw the commit change; at first, when it first saw the partition.
        stuck: The lowest record that is not done, if it holds back the commit. See `StuckRecord`.
    """

    partition: int
    log_start: int
    log_end: int
    committed: int | None
    offset_map: OffsetMap
    not_done: int
    moved: float
    tried: Mapping[int, Tried] = field(default_factory=dict)
    reason: str | None = None
    member: str | None = None
    since: float | None = None
    was_there: bool = False
    oldest: float | None = None
    stuck: StuckRecord | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a record has held back the commit for longer than the time between two commits."""
        return self.stuck is not None and self.stuck.stands_still

    @property
    def deleted(self) -> int:
        """The number of offsets that were deleted before the group committed them."""
        return max(0, self.log_start - self.committed) if self.committed is not None else 0


@dataclass(frozen=True, slots=True)
class LevelStatus:
    """A level of a queue: one Kafka topic, read by one group. `level` is None if the topic has no levels.

    Args:
        oldest_seconds: The age of the oldest record that is not done.
        arrived_per_second: How many records arrived in the last half minute, per second. None at first.
        done_per_second: How many records were done in the last half minute, per second. None in the first five seconds.
        seconds_of_work: How long it takes to do all that is not done. 0 if all is done. None if it is not known,
            because nothing was done in the last half minute. With the members' metrics, it is the mean handler time
            divided by the slots, for each record.
        share: The level's share of the slots, from 0 to 1, if members' metrics are read.
        lent: The slots of this share that other levels use now, over all members.
        borrowed: The slots that the level uses beyond its share now, over all members.
        queue_seconds: How long 95 of 100 records waited at most, from their timestamp to their first attempt, in the
            last seconds, if members' metrics are read.
    """

    level: int | None
    kafka_topic: str
    group: str
    partitions: tuple[PartitionStatus, ...]
    oldest_seconds: float | None = None
    arrived_per_second: float | None = None
    done_per_second: float | None = None
    seconds_of_work: float | None = None
    share: float | None = None
    lent: float | None = None
    borrowed: float | None = None
    queue_seconds: float | None = None

    @property
    def not_done(self) -> int:
        """The records that are not done, by the offset maps."""
        return sum(each.not_done for each in self.partitions)

    @property
    def stuck(self) -> list[tuple[PartitionStatus, StuckRecord]]:
        """The partitions that stand still, with the records that hold them back. The longest standstill comes first."""
        found = [(each, each.stuck) for each in self.partitions if each.stuck and each.is_stuck]
        return sorted(found, key=lambda pair: (pair[1].since, pair[1].timestamp or 0.0))


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A topic, with all its levels, as one group reads it. `levels` has the highest level first.

    `topic` and `group` are logical names: with a group for each level, they are the names without the level.
    `handler_seconds` is how long 95 of 100 attempts of the group's handlers took at most in the last seconds, if
    members' metrics are read.
    """

    topic: str
    group: str
    levels: tuple[LevelStatus, ...]
    handler_seconds: float | None = None

    @property
    def not_done(self) -> int:
        """The records of all levels that are not done."""
        return sum(each.not_done for each in self.levels)


@dataclass(frozen=True, slots=True)
class DeadCause:
    """The newest open dead letters with one cause. Their causes are equal if all of the first three fields are.

    `newest` is the position of the newest of them, as (partition, offset). `message` is the error text of that letter.
    """

    exception: str
    topic: str | None
    reason: str | None
    count: int
    first: float
    last: float
    newest: tuple[int, int]
    message: str


@dataclass(frozen=True, slots=True)
class DeadLetterStatus:
    """A dead-letter topic. `causes` groups the newest letters: at most `read` of the `total` that Kafka has.

    `open` counts the letters that were not sent again and not settled. It is exact unless Kafka has deleted letters.
    """

    topic: str
    total: int
    open: int
    read: int
    causes: tuple[DeadCause, ...]
    arrived_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class DelayTopicStatus:
    """A delay topic of a scheduler: `delay_ms` is how long its records wait, and 0 is the memory topic."""

    delay_ms: int
    pending: int


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The schedules of one scheduler, and how far its relays have come.

    Args:
        name: The scheduler's name.
        pending: The records in the delay topics that no relay has handled. A record that is being moved can be counted
            twice for a moment.
        delay_topics: Where these records wait, the shortest delay first.
        hours: How many schedules are due in each hour, as (the hour's start, count), in order. If `counted` is less
            than `pending`, only `counted` schedules were read.
        counted: The number of schedules in `hours`.
        overdue: How many schedules were due and not delivered, among those that were read.
        late_seconds: The age of the oldest of these, or 0.0. A relay that keeps up is less than a second late.
        commands_waiting: The commands that no relay has carried out, or None.
        relays: The number of relays, which are the members of the group with the scheduler's name.
        read_at: When all this was read.
    """

    name: str
    pending: int
    delay_topics: tuple[DelayTopicStatus, ...]
    hours: tuple[tuple[float, int], ...]
    counted: int
    overdue: int
    late_seconds: float
    commands_waiting: int | None
    relays: int
    read_at: float


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """A tenant of one handler, as the members' `/metrics` report it."""

    group: str
    tenant: str
    handler_seconds: float
    waiting: int | None = None
    handler_seconds_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """A handler of a group, over all members whose `/metrics` were read.

    Args:
        group: The group, by its name without levels.
        handler: The name of the handler.
        running: The records whose handlers are running.
        slots: How many could run.
        waiting: The records in memory that wait for a slot, for an earlier record or for a retry.
        lanes: The keys, or partitions, that have such records.
        is_circuit_open: Whether the circuit breaker of a member lets only one attempt run at a time.
    """

    group: str
    handler: str
    running: int = 0
    slots: int = 0
    waiting: int = 0
    lanes: int = 0
    is_circuit_open: bool = False


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """A rule of a group. See `headway.rules`.

    Args:
        group: The group, by its name without levels.
        id: The name of the rule in its group.
        does: What it does, such as "hold". Empty if the rule cannot be read.
        where: The selector of its records. An empty text chooses all records of the group.
        by: Who made it.
        why: The reason.
        since: When it was made, or None if the rule cannot be read.
        until: When it ends by itself, or None.
        problem: Why it cannot be read, for example because a later version of Headway made it; otherwise None.
        held: The records in memory that it keeps from starting now, if members' metrics are read.
    """

    group: str
    id: str
    does: str = ""
    where: str = ""
    by: str = ""
    why: str = ""
    since: float | None = None
    until: float | None = None
    problem: str | None = None
    held: int | None = None


@dataclass(frozen=True, slots=True)
class SeenChange:
    """Something that the inspector saw change: `what` is a sentence for a user."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of all that an inspector watches, as of `taken_at`.

    Args:
        taken_at: When the last part was read.
        queues: The queues, by name.
        members: The members of all their groups.
        dead_letters: The dead-letter topics.
        schedulers: The schedulers.
        tenants: The tenants, if members' metrics are read.
        handlers: The handlers, if members' metrics are read.
        rules: The rules of the groups that have not ended.
        changes: The latest changes, the newest first.
        notes: Sentences about what could not be read, and about what is not shown.
        requests_per_second: The requests to Kafka without fetches, on average since the start.
    """

    taken_at: float
    queues: tuple[QueueStatus, ...] = ()
    members: tuple[MemberStatus, ...] = ()
    dead_letters: tuple[DeadLetterStatus, ...] = ()
    schedulers: tuple[SchedulerStatus, ...] = ()
    tenants: tuple[TenantStatus, ...] = ()
    handlers: tuple[HandlerStatus, ...] = ()
    rules: tuple[RuleStatus, ...] = ()
    changes: tuple[SeenChange, ...] = ()
    notes: tuple[str, ...] = ()
    requests_per_second: float = 0.0

    @property
    def levels(self) -> Iterator[tuple[QueueStatus, LevelStatus]]:
        """Each level of each queue."""
        return ((queue, level) for queue in self.queues for level in queue.levels)

    def member(self, member_id: str | None) -> MemberStatus | None:
        """Return a member by its id, or None."""
        return next((each for each in self.members if each.member_id == member_id), None)
