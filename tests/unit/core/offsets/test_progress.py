"""Progress of one partition: what may be committed, and what was already done before we came."""

import time

import pytest

from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.progress import Progress


def test_with_nothing_received_the_committed_offset_stays() -> None:
    progress = Progress(OffsetMap(5))
    assert progress.snapshot() == OffsetMap(5)
    assert progress.committable == 5


def test_the_committed_offset_is_the_lowest_incomplete_one() -> None:
    progress = Progress(OffsetMap(0))
    progress.receive([0, 1, 2, 3])
    progress.complete(1)
    progress.complete(0)
    assert progress.committable == 2
    assert progress.incomplete_count == 2


def test_the_map_ends_at_the_highest_succeeded_offset_not_at_the_highest_seen() -> None:
    progress = Progress(OffsetMap(0))
    progress.receive(range(100))
    progress.complete(3)
    assert progress.snapshot() == OffsetMap(0, (3, 1))


def test_with_everything_complete_the_next_offset_is_committed_without_a_map() -> None:
    progress = Progress(OffsetMap(0))
    progress.receive([0, 1])
    progress.complete(1)
    progress.complete(0)
    assert progress.snapshot() == OffsetMap(2)


def test_offsets_missing_through_compaction_count_as_complete() -> None:
    progress = Progress(OffsetMap(0))
    progress.receive([3, 10, 500])
    progress.complete(10)
    assert progress.snapshot() == OffsetMap(3, (1, 7))
    progress.complete(3)
    assert progress.snapshot() == OffsetMap(500)


def test_transaction_markers_at_the_end_do_not_look_like_lag() -> None:
    progress = Progress(OffsetMap(0))
    progress.receive([0])
    progress.complete(0)
    assert progress.committable == 1
    progress.advance(2)
    assert progress.committable == 2
    progress.advance(1)
    assert progress.committable == 2


def test_a_log_that_starts_above_the_committed_offset_does_not_block() -> None:
    progress = Progress(OffsetMap(5, (1, 3)))
    assert progress.receive([1000, 1001]) == [1000, 1001]
    assert progress.committable == 1000
    progress.complete(1001)
    assert progress.snapshot() == OffsetMap(1000, (1, 1))


def test_what_the_map_has_as_done_is_not_handed_out_again() -> None:
    progress = Progress(OffsetMap(5, (1, 2, 1, 4)))
    assert progress.receive(range(5, 15)) == [5, 8, 13, 14]
    assert progress.snapshot() == OffsetMap(5, (1, 2, 1, 4))


def test_a_batch_with_nothing_done_comes_back_as_it_is() -> None:
    progress = Progress(OffsetMap(0))
    offsets = [0, 1, 2]
    assert progress.receive(offsets) is offsets
    assert progress.receive([]) == []


def test_a_map_survives_a_commit_before_anything_was_received() -> None:
    start = OffsetMap(5, (1, 2, 1, 4))
    assert Progress(start).snapshot() == start


def test_a_map_survives_when_only_a_part_of_it_was_received() -> None:
    progress = Progress(OffsetMap(5, (1, 2, 1, 4)))
    progress.receive([5])
    progress.complete(5)
    assert progress.snapshot() == OffsetMap(8, (1, 4))


def test_an_incomplete_offset_of_the_map_that_is_gone_does_not_block() -> None:
    progress = Progress(OffsetMap(5, (1, 2, 1, 4)))
    progress.receive([5, 13])
    progress.complete(5)
    assert progress.committable == 13


def test_done_is_what_was_completed_never_existed_or_was_done_before() -> None:
    progress = Progress(OffsetMap(5, (2, 4)))
    progress.receive([5, 9])
    assert [progress.is_done(offset) for offset in range(4, 13)] == [
        *(True, False, True, True, True, True, True),
        *(False, False),
    ]


def test_completing_what_is_not_incomplete_changes_nothing() -> None:
    progress = Progress(OffsetMap(5))
    progress.receive([5, 6])
    for offset in (4, 6, 6, 7, 1_000_000):
        progress.complete(offset)
    assert progress.snapshot() == OffsetMap(5, (1, 1))
    assert progress.incomplete_count == 1


def test_a_consumer_that_was_moved_back_is_told_so() -> None:
    progress = Progress(OffsetMap(5))
    progress.receive([5, 6])
    with pytest.raises(ValueError, match="Offset 6 was received after offset 6"):
        progress.receive([6, 7])


def test_a_hundred_thousand_records_behind_a_stuck_one_cost_no_more_than_a_few() -> None:
    progress = Progress(OffsetMap(0))
    progress.receive(range(100_000))
    started = time.thread_time()
    for offset in range(1, 100_000):
        progress.complete(offset)
        assert progress.committable == 0
    assert progress.snapshot() == OffsetMap(0, (1, 99_999))
    assert time.thread_time() - started < 2  # a search per completion takes minutes
