"""What is told of two snapshots that differ."""

from dataclasses import replace

from headway.core.offsets.offset_map import OffsetMap
from headway.inspection.seen_changes import LetterCounts, changes_between
from headway.inspection.snapshot import (
    DeadLetterStatus,
    LevelStatus,
    MemberStatus,
    PartitionStatus,
    QueueStatus,
    RuleStatus,
    SeenChange,
    Snapshot,
    StuckRecord,
)

MEMBER = MemberStatus("billing", "m1", "pod-a", "10.0.0.1", 4, since=0.0, was_there=True)


def sentences(before: Snapshot, after: Snapshot) -> list[str]:
    return [each.what for each in changes_between(before, after)]


def with_stuck(taken_at: float, *, stands_still: bool = True) -> Snapshot:
    record = StuckRecord(7, since=100.0, attempts=2, behind=5, done_ahead=3, stands_still=stands_still)
    partition = PartitionStatus(2, 0, 20, 7, OffsetMap(7), not_done=6, moved=0.0, stuck=record)
    level = LevelStatus(0, "orders-0", "billing-0", (partition,))
    return Snapshot(taken_at, queues=(QueueStatus("orders", "billing", (level,)),))


def test_members_come_and_go() -> None:
    before = Snapshot(100.0, members=(MEMBER,))
    after = Snapshot(102.0, members=(replace(MEMBER, member_id="m2", client_id="pod-b"),))
    assert sentences(before, after) == ["pod-a@10.0.0.1 left billing.", "pod-b@10.0.0.1 joined billing."]


def test_a_member_gets_other_partitions() -> None:
    before, after = Snapshot(100.0, members=(MEMBER,)), Snapshot(102.0, members=(replace(MEMBER, partitions=1),))
    assert sentences(before, after) == ["pod-a@10.0.0.1 has 1 partition in billing, and had 4."]


def test_a_record_is_stuck_and_no_longer() -> None:
    early, late = with_stuck(101.0, stands_still=False), with_stuck(108.0)
    assert sentences(early, late) == ["Offset 7 of orders-0, partition 2, is stuck."]
    assert sentences(late, with_stuck(late.taken_at + 2, stands_still=False)) == [
        "Offset 7 of orders-0, partition 2, is no longer stuck."
    ]
    assert sentences(late, with_stuck(late.taken_at + 2)) == []


def test_rules_are_made_and_end() -> None:
    rule = RuleStatus("billing", "r-1", "hold", "key = a", "ann")
    before, after = Snapshot(100.0), Snapshot(102.0, rules=(rule,))
    assert sentences(before, after) == ["The rule r-1 of billing was made by ann: hold, key = a."]
    assert sentences(after, before) == ["The rule r-1 of billing has ended."]
    assert sentences(after, replace(after, rules=(replace(rule, held=7),))) == []


def with_letters(taken_at: float, total: int) -> Snapshot:
    return Snapshot(taken_at, dead_letters=(DeadLetterStatus("orders-dead", total, 5, 5, ()),))


def test_dead_letters_arrive_and_are_reported_once_a_minute() -> None:
    counts = LetterCounts()
    assert counts.see(Snapshot(90.0)) == counts.see(with_letters(100.0, 5)) == []
    assert counts.see(with_letters(105.0, 6)) == [SeenChange(105.0, "1 dead letter arrived in orders-dead.")]
    assert counts.see(with_letters(110.0, 506)) == counts.see(with_letters(164.0, 1006)) == []
    assert counts.see(with_letters(165.0, 1006)) == [SeenChange(165.0, "1,000 dead letters arrived in orders-dead.")]
    assert counts.see(with_letters(300.0, 2)) == []  # the topic was created again
    assert [each.what for each in counts.see(with_letters(302.0, 3))] == ["1 dead letter arrived in orders-dead."]
