"""The life of a schedule, as the relay of its partition sees it: its states.

No schedule stores its state: a relay that starts has only the stored changes and the lines, which hold millions of
schedules that it has not seen. So the state is derived from what the relay knows.
"""

from enum import StrEnum

from headway.core.delay.changes import Change


class ScheduleState(StrEnum):
    """A state in the life of a schedule, from when it is stored to its end."""

    IN_LINE = "in_line"
    """Its live copy is in a line, or on its way there. This includes schedules that the relay does not know of."""
    IN_MEMORY = "in_memory"
    """It waits in memory for its due time."""
    CHANGED = "changed"
    """It has another time. The copy for that is written when the present one comes out of its line."""
    SOUGHT = "sought"
    """It has an earlier time, so its record is being searched for in its line."""
    LATE = "late"
    """Its command arrived when the record was about to come out, so it is not yet known whether it was delivered."""
    CANCELLED = "cancelled"
    """None of its copies will be delivered."""
    DELIVERED = "delivered"
    """It was delivered, or fired for the last time."""


def state_of(change: Change | None, *, is_held: bool, is_delivered: bool, is_undecided: bool) -> ScheduleState:
    """Derive the state of a schedule.

    Args:
        change: Its change, if it has one.
        is_held: True if its record waits in memory.
        is_delivered: True if it was delivered recently, or everything due by then has come out of its line.
        is_undecided: True if a command for it is not answered yet.
    """
    if change and change.due is None:
        return ScheduleState.DELIVERED if change.is_delivered else ScheduleState.CANCELLED
    if is_held:
        return ScheduleState.IN_MEMORY
    if is_delivered:
        return ScheduleState.DELIVERED
    is_behind = change is not None and change.live < change.generation
    if is_undecided:
        return ScheduleState.SOUGHT if is_behind else ScheduleState.LATE
    return ScheduleState.CHANGED if is_behind else ScheduleState.IN_LINE
