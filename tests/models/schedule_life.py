"""The life of a schedule as a table: the state after each event that changes one.

The drawing of docs/design/states.md is this table, and a test goes through it with public calls of the relay.
"""

from enum import StrEnum

from headway.core.delay.schedule_states import ScheduleState


class ScheduleEvent(StrEnum):
    """An event in the life of a schedule."""

    COMES_BY = "comes by, due much later"
    COMES_BY_SOON = "comes by, due soon"
    COMES_BY_CANCELLED = "comes by after all, to be cancelled"
    COMES_BY_MOVED = "comes by after all, to be moved"
    NEVER_CAME = "would have come by"
    DUE = "its time comes"
    FIRES = "its time comes, and it recurs"
    CANCEL = "cancel"
    DEFER = "reschedule to later"
    ADVANCE = "reschedule to sooner"
    FOUND = "its record is found"
    NOT_FOUND = "its record is not found"


_S, _E = ScheduleState, ScheduleEvent

SCHEDULE_TRANSITIONS = {
    (_S.IN_LINE, _E.COMES_BY): _S.IN_LINE,
    (_S.IN_LINE, _E.COMES_BY_SOON): _S.IN_MEMORY,
    (_S.IN_LINE, _E.CANCEL): _S.CANCELLED,
    (_S.IN_LINE, _E.DEFER): _S.CHANGED,
    (_S.IN_LINE, _E.ADVANCE): _S.SOUGHT,
    (_S.IN_MEMORY, _E.DUE): _S.DELIVERED,
    (_S.IN_MEMORY, _E.FIRES): _S.IN_LINE,
    (_S.IN_MEMORY, _E.CANCEL): _S.CANCELLED,
    (_S.IN_MEMORY, _E.DEFER): _S.IN_LINE,
    (_S.IN_MEMORY, _E.ADVANCE): _S.IN_LINE,
    (_S.CHANGED, _E.COMES_BY): _S.IN_LINE,
    (_S.CHANGED, _E.CANCEL): _S.CANCELLED,
    (_S.CHANGED, _E.DEFER): _S.CHANGED,
    (_S.CHANGED, _E.ADVANCE): _S.SOUGHT,
    (_S.SOUGHT, _E.FOUND): _S.IN_LINE,
    (_S.SOUGHT, _E.NOT_FOUND): _S.CHANGED,
    (_S.SOUGHT, _E.COMES_BY): _S.IN_LINE,
    (_S.SOUGHT, _E.CANCEL): _S.CANCELLED,
    (_S.SOUGHT, _E.DEFER): _S.SOUGHT,
    (_S.SOUGHT, _E.ADVANCE): _S.SOUGHT,
    (_S.LATE, _E.COMES_BY_CANCELLED): _S.CANCELLED,
    (_S.LATE, _E.COMES_BY_MOVED): _S.IN_LINE,
    (_S.LATE, _E.NEVER_CAME): _S.DELIVERED,
}
"""(state, event) -> the next state. Any other event changes nothing."""
