"""What `headway schedule list` takes of all that is pending."""

from typing import Any

from headway.cli.schedule import soonest_of
from headway.core.schedules import Schedule
from headway.delay.pending import Pending

NO_MESSAGE: Any = None


def pending(order: int, line: int) -> Pending:
    return Pending(line, 0, Schedule(f"id-{order}", 5_000 + order, 1_000, order, "orders"), 5_000 + order, NO_MESSAGE)


def test_a_schedule_that_moves_while_it_is_read_is_listed_once() -> None:
    found = [pending(order, line) for line in (8_000, 4_000, 0) for order in (7, 3, 9, 1, 5)]
    assert [each.schedule.order for each in soonest_of(found, 20)] == [1, 3, 5, 7, 9]


def test_no_more_are_listed_than_asked_for_and_of_these_none_twice() -> None:
    found = [pending(order, line) for line in (8_000, 4_000) for order in range(100, 0, -1)]
    assert [each.schedule.order for each in soonest_of(found, 3)] == [1, 2, 3]
