"""What the demo makes of the follow-ups that came."""

import time

import pytest

from demo.later import Outcome, delay_until


def kept(scheduled: int, *came: tuple[int, int]) -> list[bool | None]:
    """Whether each came once, and none early, of these numbers and milliseconds late."""
    outcome = Outcome(scheduled)
    for number, late_ms in came:
        outcome.note(number, late_ms)
    return [promise.kept for promise in outcome.promises()]


def test_follow_ups_that_come_once_and_not_early_are_as_promised() -> None:
    assert kept(2, (1, 0), (0, 7)) == [True, True]
    assert kept(2, (1, -1), (0, 7)) == [True, False]


def test_where_no_follow_up_comes_the_promise_is_broken_and_none_can_have_been_early() -> None:
    assert kept(2) == [False, None]


def test_a_follow_up_that_is_scheduled_too_late_is_due_a_moment_later_so_that_it_could_be_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert [delay_until(due) for due in (1002.0, 1000.1, 990.0)] == [2.0, 0.5, 0.5]


def test_a_follow_up_that_comes_twice_does_not_stand_for_one_that_is_lost() -> None:
    assert kept(2, (0, 1), (0, 2)) == [False, True]
    assert kept(2, (0, 1), (1, 1), (0, 2)) == [False, True]
