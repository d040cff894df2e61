"""What `headway schedule list` takes of all that is pending."""

from typing import Any, cast

from headway.cli.commands.schedule import row_of
from headway.core.delay.schedule import Schedule
from headway.delay.pending import Pending, soonest_of

NO_MESSAGE: Any = None


def pending(order: int, line: int) -> Pending:
    return Pending(line, 0, Schedule(f"id-{order}", 5_000 + order, 1_000, order, "orders"), 5_000 + order, NO_MESSAGE)


def test_a_schedule_that_moves_while_it_is_read_is_listed_once() -> None:
    found = [pending(order, line) for line in (8_000, 4_000, 0) for order in (7, 3, 9, 1, 5)]
    assert [each.schedule.order for each in soonest_of(found, 20)] == [1, 3, 5, 7, 9]


def test_no_more_are_listed_than_asked_for_and_of_these_none_twice() -> None:
    found = [pending(order, line) for line in (8_000, 4_000) for order in range(100, 0, -1)]
    assert [each.schedule.order for each in soonest_of(found, 3)] == [1, 2, 3]


def test_what_a_table_shows_of_a_schedule_moves_no_cursor() -> None:
    class Stored:
        def key(self) -> bytes:
            return b"\x1b[2J\xff"

        def value(self) -> None:
            return None

    schedule = Schedule("\x1b[2J", 5_000, 1_000, 0, "orders")
    shown = row_of(Pending(0, 0, schedule, 5_000, cast(Any, Stored())))
    assert shown[2:] == ("0x1b5b324aff", "0", "0.5000.1000.\\x1b[2J")
