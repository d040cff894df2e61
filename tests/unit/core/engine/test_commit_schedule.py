"""When levels commit: together while they are well, and apart with a back-off after a failure."""

from itertools import pairwise

from headway.core.engine.commit_schedule import CommitSchedule


def test_a_level_that_fails_waits_twice_as_long_each_time_but_never_longer_than_ten_seconds() -> None:
    turns = CommitSchedule(levels=1, interval=0.1, now=0.0)
    now, waits = 0.0, []
    for _ in range(12):
        turns.failed([0], now, chance=1.0)
        waits.append(turns.next_turn() - now)
        now = turns.next_turn()
        assert turns.due(now - 0.001) == []
        assert turns.due(now) == [{0}]
    assert all(abs(later - min(10.0, 2 * wait)) < 1e-9 for wait, later in pairwise(waits))
    assert abs(waits[-1] - 10.0) < 1e-9


def test_chance_spreads_what_failed_together_over_half_of_the_wait() -> None:
    waits = []
    for chance in (0.0, 0.5, 1.0):
        turns = CommitSchedule(levels=1, interval=5.0, now=0.0)
        turns.failed([0], 0.0, chance)
        waits.append(turns.next_turn())
    assert waits == [0.1, 0.15000000000000002, 0.2]


def test_a_level_that_fails_commits_apart_from_the_others_until_it_has_succeeded() -> None:
    turns = CommitSchedule(levels=3, interval=1.0, now=0.0)
    assert turns.due(1.0) == [{0, 1, 2}]
    turns.began({0, 1, 2}, 1.0)
    turns.failed([1], 1.0, chance=1.0)
    assert turns.due(2.0) == [{0, 2}, {1}]
    turns.succeeded([1])
    assert turns.due(2.0) == [{0, 1, 2}]


def test_while_all_levels_fail_nothing_is_due_before_one_is_tried_again() -> None:
    turns = CommitSchedule(levels=2, interval=0.1, now=0.0)
    turns.failed([0, 1], 5.0, chance=1.0)
    assert turns.next_turn() == 5.2
    assert turns.due(5.1) == []


def test_partitions_that_leave_are_committed_at_once_whatever_has_failed() -> None:
    turns = CommitSchedule(levels=2, interval=600.0, now=0.0)
    turns.failed([0], 0.0, chance=1.0)
    turns.hurry([0, 1])
    assert turns.due(0.0) == [{1}, {0}]
