"""The end of an object, step by step, whatever is raised."""

import contextlib
import signal
from collections.abc import Callable

import pytest

from headway.runtime.end_steps import EndSteps
from tests.interrupts import Interrupts


def raiser(error: BaseException) -> Callable[[], object]:
    def step() -> None:
        raise error

    return step


def test_each_step_is_taken_whatever_one_raises_and_the_last_error_is_raised() -> None:
    taken: list[int] = []
    first, last = ValueError("first"), ValueError("last")
    steps = EndSteps(lambda: [raiser(first), lambda: taken.append(1), raiser(last), lambda: taken.append(2)])
    with pytest.raises(ValueError, match="last") as raised:
        steps.take()
    assert raised.value.__context__ is first
    assert taken == [1, 2]
    assert steps.is_over


def test_a_step_that_an_interrupt_ended_is_taken_again_in_a_hurry_and_the_next_one_is_not_hurried() -> None:
    hurried: list[bool] = []
    interrupts = [KeyboardInterrupt()]

    def step() -> None:
        hurried.append(steps.hurries)
        if interrupts:
            raise interrupts.pop()

    steps = EndSteps(lambda: [step, step])
    with pytest.raises(KeyboardInterrupt):
        steps.take()
    assert hurried == [False, True, False]


def test_interrupts_of_a_step_that_is_taken_again_wait_for_its_end_and_the_others_are_taken_all_the_same() -> None:
    taken: list[str] = []

    def interrupted() -> None:
        taken.append("begun")
        signal.raise_signal(signal.SIGINT)
        taken.append("hurried to the end")

    steps = EndSteps(lambda: [interrupted, lambda: taken.append("the other one")])
    with pytest.raises(KeyboardInterrupt):
        steps.take()
    assert taken == ["begun", "begun", "hurried to the end", "the other one"]


def test_an_error_of_a_hurried_step_does_not_hide_the_interrupt() -> None:
    def fail() -> None:
        raise ValueError if steps.hurries else KeyboardInterrupt

    steps = EndSteps(lambda: [fail])
    with pytest.raises(KeyboardInterrupt):
        steps.take()
    assert steps.is_over


def test_a_step_that_is_interrupted_twice_is_taken_a_third_time() -> None:
    taken: list[bool] = []

    def step() -> None:
        taken.append(steps.hurries)
        if len(taken) < 3:
            raise KeyboardInterrupt

    steps = EndSteps(lambda: [step])
    with pytest.raises(KeyboardInterrupt):
        steps.take()
    assert taken == [False, True, True]
    assert steps.is_over


def test_a_step_that_raises_an_interrupt_each_time_does_not_keep_the_others_from_being_taken() -> None:
    taken: list[int] = []
    steps = EndSteps(lambda: [raiser(KeyboardInterrupt()), lambda: taken.append(1)])
    with pytest.raises(KeyboardInterrupt):
        steps.take()
    assert taken == [1]
    assert steps.is_over


@pytest.mark.interrupts
def test_interrupts_at_any_two_steps_leave_nothing_untaken_unless_they_come_before_the_first() -> None:
    for first in range(0, 700, 7):
        taken: list[int] = []
        steps = EndSteps(lambda taken=taken: [lambda: taken.append(1), lambda: taken.append(2)])  # type: ignore[misc]
        with contextlib.suppress(KeyboardInterrupt), Interrupts(EndSteps.take, first, first % 20):
            steps.take()
        assert steps.is_over or not taken
        steps.take()
        assert taken[-1] == 2


def test_a_call_within_a_step_does_nothing() -> None:
    taken: list[int] = []

    def step() -> None:
        steps.take()
        taken.append(1)

    steps = EndSteps(lambda: [step])
    steps.take()
    assert taken == [1]


def test_a_second_call_takes_no_step_again() -> None:
    taken: list[int] = []
    steps = EndSteps(lambda: [lambda: taken.append(1)])
    steps.take()
    steps.take()
    assert taken == [1]
