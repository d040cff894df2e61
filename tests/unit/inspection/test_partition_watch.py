"""What is concluded about a partition from several readings."""

from headway.core.offsets.offset_map import OffsetMap, encode
from headway.core.offsets.trailer import Trailer, Tried
from headway.inspection.partition_watch import PartitionWatch, RecordFacts, SameKey
from headway.inspection.snapshot import PartitionStatus, StuckRecord

START = 1_000.0
STUCK = OffsetMap(7, (1, 90, 2, 100))  # 7 is not done, and neither are 98 and 99; the log ends at 250


def committed(offset_map: OffsetMap, tried: dict[int, Tried] | None = None) -> tuple[int, bytes]:
    return offset_map.offset, encode(offset_map, Trailer(offset_map.offset, tried=tried or {})).encode()


def watch(commit: tuple[int, bytes] | None, *, end: int = 250, member: str | None = "m1") -> PartitionWatch:
    found = PartitionWatch(3, START, 2.0, was_there=True)
    found.see(START, (0, end), commit, member)
    return found


def stuck(found: PartitionWatch, now: float) -> StuckRecord:
    record = found.status(now).stuck
    assert record is not None
    return record


def test_not_done_is_counted_by_the_map_and_not_by_the_commit() -> None:
    status = watch(committed(STUCK)).status(START)
    assert (status.committed, status.not_done) == (7, 1 + 2 + 50)


def test_the_lowest_record_that_is_not_done_has_the_rest_behind_it() -> None:
    record = stuck(watch(committed(STUCK, {7: Tried(4)})), START)
    assert (record.offset, record.attempts, record.behind, record.done_ahead) == (7, 4, 52, 190)


def test_a_record_stands_still_only_after_a_commit_must_have_been_seen() -> None:
    found = watch(committed(STUCK))
    found.see(START + 5, (0, 250), committed(STUCK), "m1")
    assert not stuck(found, START + 5).stands_still
    assert stuck(found, START + 8).stands_still


def test_a_commit_that_moves_is_no_standstill() -> None:
    found = watch(committed(STUCK))
    found.see(START + 9, (0, 250), committed(OffsetMap(99, (1, 10))), "m1")
    record = stuck(found, START + 9)
    assert (record.offset, record.since, record.stands_still) == (99, START + 9, False)


def test_a_record_without_a_map_is_stuck_once_it_stands_still() -> None:
    found = watch((40, b""))
    assert found.status(START).stuck is None
    assert stuck(found, START + 8).behind == 209


def test_nothing_is_stuck_in_a_group_without_members_because_everything_waits() -> None:
    found = watch((40, b""), member=None)
    assert found.status(START + 100).stuck is None
    assert not stuck(watch(committed(STUCK), member=None), START + 100).stands_still


def test_offsets_that_were_deleted_are_neither_not_done_nor_stuck() -> None:
    found = PartitionWatch(0, START, 2.0, was_there=True)
    found.see(START, (50, 250), committed(STUCK), "m1")
    status = found.status(START)
    assert (status.deleted, status.not_done) == (43, 2 + 50)
    assert stuck(found, START).offset == 98


def test_a_map_of_another_log_is_not_used_and_the_reason_is_kept() -> None:
    status = watch(committed(STUCK), end=100).status(START)
    assert status.not_done == 93
    assert status.reason is not None
    assert "the log ends at offset 100" in status.reason


def test_all_done_leaves_nothing_to_show() -> None:
    status = watch((250, b"")).status(START + 60)
    assert status == PartitionStatus(
        partition=3,
        log_start=0,
        log_end=250,
        committed=250,
        offset_map=OffsetMap(250),
        not_done=0,
        moved=START,
        member="m1",
        since=START,
        was_there=True,
    )


def test_a_partition_that_changes_hands_says_since_when() -> None:
    found = watch((250, b""))
    found.see(START + 30, (0, 250), (250, b""), "m2")
    status = found.status(START + 60)
    assert (status.member, status.since, status.was_there) == ("m2", START + 30, False)


def test_a_record_that_arrives_after_a_quiet_hour_does_not_stand_still() -> None:
    found = watch((250, b""))
    found.see(START + 3600, (0, 251), (250, b""), "m1")
    assert found.status(START + 3600).stuck is None
    found.see(START + 3610, (0, 251), (250, b""), "m1")
    assert stuck(found, START + 3610).since == START + 3600


def test_the_record_that_holds_back_the_commit_is_read_once() -> None:
    found = watch(committed(STUCK, {7: Tried(4)}))
    assert found.urgency(START) == 0
    found.has_read(START, 7, RecordFacts(timestamp=900.0, key=b"ann", size=5, last_error="E: no"))
    assert found.urgency(START + 60) is None
    record = stuck(found, START)
    assert (record.timestamp, record.key, record.size, record.last_error) == (900.0, b"ann", 5, "E: no")
    assert found.status(START).oldest == 900.0


def test_the_age_of_a_record_that_arrived_while_it_was_watched_needs_no_reading() -> None:
    found = watch((250, b""))
    found.see(START + 10, (0, 350), (250, b""), "m1")
    assert found.urgency(START + 10) is None
    assert found.status(START + 10).oldest == START


def test_records_with_the_key_of_the_stuck_one_are_counted_again_after_a_minute() -> None:
    found = watch(committed(STUCK))
    found.has_read(START, 7, RecordFacts(timestamp=900.0, key=b"ann"))
    assert found.to_count(START + 5, 20) is None
    assert found.to_count(START + 8, 20) == (8, 28)
    assert [found.counts(offset, b"ann") for offset in (8, 98, 249)] == [False, True, True]
    assert not found.counts(249, b"bob")
    found.has_counted(START + 8, SameKey(3, 20))
    assert found.to_count(START + 60, 20) is None
    assert stuck(found, START + 60).behind_same_key == 3
    assert found.to_count(START + 69, 20) is not None
