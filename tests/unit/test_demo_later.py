"""What the demo makes of the follow-ups that came."""

from demo.later import Outcome


def kept(scheduled: int, *came: tuple[int, int]) -> list[bool | None]:
    """Whether each came once, and none early, of these numbers and milliseconds late."""
    outcome = Outcome(scheduled)
    for number, late_ms in came:
        outcome.note(number, late_ms)
    return [promise.kept for promise in outcome.promises()]


def test_follow_ups_that_come_once_and_not_early_are_as_promised() -> None:
    assert kept(2, (1, 0), (0, 7)) == [True, True]
    assert kept(2, (1, -1), (0, 7)) == [True, False]


def test_where_no_follow_up_comes_the_promise_is_broken_and_the_demo_goes_on() -> None:
    assert kept(2) == [False, True]


def test_a_follow_up_that_comes_twice_does_not_stand_for_one_that_is_lost() -> None:
    assert kept(2, (0, 1), (0, 2)) == [False, True]
    assert kept(2, (0, 1), (1, 1), (0, 2)) == [False, True]
