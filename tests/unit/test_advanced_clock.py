"""The clock of tests: it jumps from due time to due time, and never back."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.core.delay.recurrence import Recurrence
from headway.core.delay.schedule import Schedule
from headway.delay.pending import Pending
from headway.testing.advanced_clock import AdvancedClock

HOUR = 3_600_000
NOW = 1_700_000_000_000


def pending(id: str, due: int, at: int = NOW, recurrence: Recurrence | None = None) -> Pending:
    message: Any = None
    return Pending(1000, 0, Schedule(id, due, at, 0, "calls", recurrence=recurrence), due, message)


def ids(found: list[Pending]) -> list[str]:
    return [each.schedule.id for each in found]


def test_it_jumps_to_one_due_time_after_the_other_and_no_farther_than_asked() -> None:
    clock = AdvancedClock(NOW, 2 * HOUR)
    found = [pending("b", NOW + 2 * HOUR), pending("a", NOW + HOUR), pending("c", NOW + 2 * HOUR + 1)]
    assert ids(clock.jump(found, NOW)) == ["a"]
    assert ids(clock.jump(found, NOW)) == ["b"]
    assert ids(clock.jump(found, NOW)) == []
    assert [clock.due_of(each) for each in found] == [None, None, NOW + 2 * HOUR + 1]


def test_what_is_scheduled_after_a_jump_is_due_so_much_later() -> None:
    clock = AdvancedClock(NOW, 10 * HOUR)
    assert ids(clock.jump([pending("first", NOW + 3 * HOUR)], NOW + 500)) == ["first"]
    then = pending("an hour later", NOW + 1000 + HOUR, at=NOW + 1000)
    other = pending("made before, and seen now", NOW + 4 * HOUR - 1, at=NOW + 499)
    clock.see([then, other])
    assert (clock.due_of(then), clock.due_of(other)) == (NOW + 4 * HOUR + 500, NOW + 4 * HOUR - 1)
    assert ids(clock.jump([then, other], NOW + 2000)) == ["made before, and seen now"]
    assert ids(clock.jump([then], NOW + 3000)) == ["an hour later"]
    assert clock.due_of(then) is None


def test_a_changed_due_time_counts_from_the_change() -> None:
    clock = AdvancedClock(NOW, 10 * HOUR)
    clock.see([pending("moved", NOW + 9 * HOUR)])
    clock.jump([pending("first", NOW + HOUR)], NOW)
    moved = pending("moved", NOW + 2 * HOUR)
    assert ids(clock.jump([moved], NOW)) == ["moved"]
    assert AdvancedClock(NOW, 0).jump([moved], NOW) == []


def test_a_recurring_schedule_comes_at_each_of_its_times_however_kafka_lists_it() -> None:
    clock = AdvancedClock(NOW, 24 * HOUR)
    daily = Recurrence(cron="0 * * * *")
    first = (NOW // HOUR + 1) * HOUR
    times, stored = 0, first
    while clock.jump([pending("hourly", stored, recurrence=daily)], NOW + times):
        times += 1
        stored = NOW + times % 3  # as rescheduled to now, delivered, and due again
    assert times == 24


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=30),
    st.integers(0, 30),
)
def test_all_within_reach_comes_once_in_the_order_of_due_times(schedules: list[tuple[int, int]], advance: int) -> None:
    clock = AdvancedClock(NOW, advance)
    found = [pending(str(number), NOW + delay, NOW + at) for number, (delay, at) in enumerate(schedules)]
    came: list[Pending] = []
    while reached := clock.jump(found, NOW):
        came += reached
    in_reach = [each for each in found if each.due - NOW <= advance]
    assert [(each.due, each.schedule.at) for each in came] == sorted((each.due, each.schedule.at) for each in in_reach)
    assert len({each.schedule.id for each in came}) == len(came) == len(in_reach)
