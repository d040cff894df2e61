"""What the tests of pages show without a broker: snapshots, and an inspector that has them."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried
from headway.inspection.snapshot import (
    DeadCause,
    DeadLetterStatus,
    DelayTopicStatus,
    LevelStatus,
    MemberStatus,
    PartitionStatus,
    QueueStatus,
    RuleStatus,
    SchedulerStatus,
    Snapshot,
    StuckRecord,
)
from headway.records.record_types import Message

NOW = 1_800_000_000.0
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>"


class Shown:
    """An inspector that has these snapshots, one after the other."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = snapshots
        self._changed = threading.Condition()
        self._at = 0

    def next(self) -> None:
        """Go on to the next snapshot."""
        with self._changed:
            self._at += 1
            self._changed.notify_all()

    def snapshot(self, timeout: float) -> Snapshot:
        return self._snapshots[self._at]

    def newer(self, than: Snapshot, timeout: float) -> Snapshot:
        with self._changed:
            self._changed.wait_for(lambda: self._snapshots[self._at] is not than, timeout)
            return self._snapshots[self._at]

    def record(self, kafka_topic: str, partition: int, offset: int) -> Message | None:
        return None


def partition(number: int = 0, *, stuck_for: float | None = 240.0, key: bytes = b"customer 7") -> PartitionStatus:
    """A partition of which the offsets 100 and 105 to 109 are not done, and 100 has been in the way for a while."""
    stuck = StuckRecord(
        100,
        NOW - (stuck_for or 0),
        attempts=3,
        behind=5,
        done_ahead=4,
        stands_still=bool(stuck_for and stuck_for > 8),
        timestamp=NOW - 300,
        key=key,
        headers=(("trace", b"abc"), (HOSTILE, HOSTILE.encode())),
        size=42,
        last_error="TimeoutError: no answer of the bank",
        behind_same_key=2,
        looked_at=9,
    )
    return PartitionStatus(
        partition=number,
        log_start=0,
        log_end=110,
        committed=100,
        offset_map=OffsetMap(100, (1, 4)),
        not_done=6,
        moved=NOW - 240,
        tried={100: Tried(3)},
        member="member-1",
        since=NOW - 600,
        stuck=None if stuck_for is None else stuck,
    )


def queue(partitions: Sequence[PartitionStatus], levels: int = 2) -> QueueStatus:
    """A queue with levels that all have these partitions."""
    statuses = tuple(
        LevelStatus(
            level,
            f"orders-{level}",
            f"billing-{level}",
            tuple(partitions),
            oldest_seconds=300.0,
            arrived_per_second=10.0,
            done_per_second=5.0 * (level + 1),
            seconds_of_work=12.0,
        )
        for level in reversed(range(levels))
    )
    return QueueStatus("orders", "billing", statuses)


def scene(*queues: QueueStatus, at: float = NOW) -> Snapshot:
    """A snapshot with queues, a member, dead letters and a scheduler, with hostile texts in all of them."""
    cause = DeadCause("shop.Declined", "orders-1", "attempt 5 of 5 failed", 12, NOW - 900, NOW - 60, (0, 7), HOSTILE)
    hours = ((NOW, 10), (NOW + 7200, 20))
    return Snapshot(
        taken_at=at,
        queues=queues or (queue([partition()]),),
        members=tuple(
            MemberStatus(f"billing-{level}", "member-1", HOSTILE, "10.0.0.7", 1, NOW - 600, False) for level in (0, 1)
        ),
        dead_letters=(DeadLetterStatus("orders-dead", 20, 12, 12, (cause,)),),
        schedulers=(
            SchedulerStatus("headway-delay", 30, (DelayTopicStatus(60_000, 30),), hours, 30, 2, 61.0, 0, 1, NOW),
        ),
        rules=(
            RuleStatus("billing", "r-1", "hold", f"key = '{HOSTILE}'", HOSTILE, HOSTILE, NOW - 100, NOW + 3600),
            RuleStatus(HOSTILE, "r-2", problem=HOSTILE),
        ),
        notes=(HOSTILE,),
        requests_per_second=4.5,
    )


def later(snapshot: Snapshot, seconds: float) -> Snapshot:
    """The same snapshot, taken later."""
    return replace(snapshot, taken_at=snapshot.taken_at + seconds)
