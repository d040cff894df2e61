"""When levels commit: together while they are well, and apart with a back-off after a failure."""

from itertools import pairwise

from headway.core.engine.commit_schedule import CommitSchedule


def test_a_level_that_fails_waits_twice_as_long_each_time_but_never_longer_than_ten_seconds() -> None:
    schedule = CommitSchedule(levels=1, interval=0.1, now=0.0)
    now, waits = 0.0, []
    for _ in range(12):
        schedule.failed([0], now, random_number=0.0)
        waits.append(schedule.next_time() - now)
        now = schedule.next_time()
        assert schedule.due(now - 0.001) == []
        assert schedule.due(now) == [{0}]
    assert all(abs(later - min(10.0, 2 * wait)) < 1e-9 for wait, later in pairwise(waits))
    assert abs(waits[-1] - 10.0) < 1e-9


def test_a_random_number_spreads_the_next_attempts_over_half_of_the_wait() -> None:
    waits = []
    for random_number in (1.0, 0.5, 0.0):
        schedule = CommitSchedule(levels=1, interval=5.0, now=0.0)
        schedule.failed([0], 0.0, random_number)
        waits.append(schedule.next_time())
    assert waits == [0.1, 0.15000000000000002, 0.2]


def test_a_level_that_fails_commits_apart_from_the_others_until_it_has_succeeded() -> None:
    schedule = CommitSchedule(levels=3, interval=1.0, now=0.0)
    assert schedule.due(1.0) == [{0, 1, 2}]
    schedule.began({0, 1, 2}, 1.0)
    schedule.failed([1], 1.0, random_number=0.0)
    assert schedule.due(2.0) == [{0, 2}, {1}]
    schedule.succeeded([1])
    assert schedule.due(2.0) == [{0, 1, 2}]


def test_while_all_levels_fail_nothing_is_due_before_one_is_tried_again() -> None:
    schedule = CommitSchedule(levels=2, interval=0.1, now=0.0)
    schedule.failed([0, 1], 5.0, random_number=0.0)
    assert schedule.next_time() == 5.2
    assert schedule.due(5.1) == []


def test_partitions_that_leave_are_committed_at_once_whatever_has_failed() -> None:
    schedule = CommitSchedule(levels=2, interval=600.0, now=0.0)
    schedule.failed([0], 0.0, random_number=0.0)
    schedule.hurry([0, 1])
    assert schedule.due(0.0) == [{1}, {0}]
