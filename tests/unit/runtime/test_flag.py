"""A flag and a nudge, which an interrupt of the main thread cannot break."""

import threading

import pytest

from headway.runtime.flag import Flag, Nudge, WholeCondition
from tests.interrupts import Interrupts


def test_a_flag_ends_the_waits_of_all_threads_and_all_later_ones() -> None:
    flag = Flag()
    waiting = [threading.Thread(target=flag.wait) for _ in range(3)]
    for each in waiting:
        each.start()
    assert not flag.wait(0.01)
    flag.set()
    flag.set()
    for each in waiting:
        each.join(10)
    assert not any(each.is_alive() for each in waiting)
    assert flag.is_set()
    assert flag.wait()
    assert flag.wait(0)


def test_a_nudge_ends_one_wait_even_if_it_came_before() -> None:
    nudge = Nudge()
    nudge.set()
    nudge.set()
    nudge.wait(60)
    nudge.wait(0.01)
    late = threading.Timer(0.01, nudge.set)
    late.start()
    nudge.wait(60)
    late.join()


@pytest.mark.interrupts
@pytest.mark.parametrize("step", range(60))
def test_an_interrupt_at_any_step_of_a_wait_leaves_a_flag_that_others_can_set_and_wait_for(step: int) -> None:
    flag = Flag()
    try:
        with Interrupts(Flag.wait, step, 1000):
            flag.wait(0.01)
    except KeyboardInterrupt:
        pass
    other = threading.Thread(target=flag.wait)
    other.start()
    flag.set()
    other.join(10)
    assert not other.is_alive()
    assert flag.wait(10)


@pytest.mark.interrupts
@pytest.mark.parametrize("step", range(20))
def test_an_interrupt_as_a_flag_is_set_leaves_no_thread_that_waits(step: int) -> None:
    flag = Flag()
    other = threading.Thread(target=flag.wait)
    other.start()
    try:
        with Interrupts(Flag.set, step, 1000):
            flag.set()
    except KeyboardInterrupt:
        flag.set()
    other.join(10)
    assert not other.is_alive()


@pytest.mark.interrupts
@pytest.mark.parametrize("step", range(60))
def test_an_interrupt_at_any_step_of_a_wait_gives_back_the_lock_of_a_condition(step: int) -> None:
    condition = WholeCondition()
    try:
        with Interrupts(in_condition, step, 1000, "/threading.py"):
            in_condition(condition)
    except KeyboardInterrupt:
        pass
    notified = threading.Thread(target=in_condition, args=[condition], daemon=True)
    notified.start()
    notified.join(10)
    assert not notified.is_alive()


def in_condition(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()
