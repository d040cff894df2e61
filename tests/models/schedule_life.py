"""The life of a schedule as a table: the state after each event that changes one.

The drawing of docs/design/states.md is this table, and a test goes through it with public calls of the relay. No
schedule stores its state: a relay that starts has only the stored changes and the delay topics, which hold millions of
schedules that it has not seen. So the state is derived from the relay's parts.
"""

from enum import StrEnum

from headway.core.delay.partition_relay import PartitionRelay


class ScheduleState(StrEnum):
    """A state in the life of a schedule, from when it is stored to its end."""

    IN_DELAY_TOPIC = "in_delay_topic"
    """Its live copy is in a delay topic, or on its way there. This includes schedules that the relay does not know."""
    IN_MEMORY = "in_memory"
    """It waits in memory for its due time."""
    CHANGED = "changed"
    """It has another time. The copy for that is written when the present one comes out of its delay topic."""
    SOUGHT = "sought"
    """It has an earlier time, so its record is being searched for in its delay topic."""
    LATE = "late"
    """Its command arrived when the record was about to come out, so it is not yet known whether it was delivered."""
    CANCELLED = "cancelled"
    """None of its copies will be delivered."""
    DELIVERED = "delivered"
    """It was delivered, or fired for the last time."""


class ScheduleEvent(StrEnum):
    """An event in the life of a schedule."""

    COMES_BY = "released, due much later"
    COMES_BY_SOON = "released, due soon"
    COMES_BY_CANCELLED = "released, must be cancelled"
    COMES_BY_MOVED = "released, must be moved"
    NEVER_CAME = "all records due by then were read"
    DUE = "due"
    FIRES = "due, and it recurs"
    CANCEL = "cancel"
    DEFER = "reschedule to later"
    ADVANCE = "reschedule to sooner"
    FOUND = "its record is found"
    NOT_FOUND = "its record is not found"


_S, _E = ScheduleState, ScheduleEvent

SCHEDULE_TRANSITIONS = {
    (_S.IN_DELAY_TOPIC, _E.COMES_BY): _S.IN_DELAY_TOPIC,
    (_S.IN_DELAY_TOPIC, _E.COMES_BY_SOON): _S.IN_MEMORY,
    (_S.IN_DELAY_TOPIC, _E.CANCEL): _S.CANCELLED,
    (_S.IN_DELAY_TOPIC, _E.DEFER): _S.CHANGED,
    (_S.IN_DELAY_TOPIC, _E.ADVANCE): _S.SOUGHT,
    (_S.IN_MEMORY, _E.DUE): _S.DELIVERED,
    (_S.IN_MEMORY, _E.FIRES): _S.IN_DELAY_TOPIC,
    (_S.IN_MEMORY, _E.CANCEL): _S.CANCELLED,
    (_S.IN_MEMORY, _E.DEFER): _S.IN_DELAY_TOPIC,
    (_S.IN_MEMORY, _E.ADVANCE): _S.IN_DELAY_TOPIC,
    (_S.CHANGED, _E.COMES_BY): _S.IN_DELAY_TOPIC,
    (_S.CHANGED, _E.CANCEL): _S.CANCELLED,
    (_S.CHANGED, _E.DEFER): _S.CHANGED,
    (_S.CHANGED, _E.ADVANCE): _S.SOUGHT,
    (_S.SOUGHT, _E.FOUND): _S.IN_DELAY_TOPIC,
    (_S.SOUGHT, _E.NOT_FOUND): _S.CHANGED,
    (_S.SOUGHT, _E.COMES_BY): _S.IN_DELAY_TOPIC,
    (_S.SOUGHT, _E.CANCEL): _S.CANCELLED,
    (_S.SOUGHT, _E.DEFER): _S.SOUGHT,
    (_S.SOUGHT, _E.ADVANCE): _S.SOUGHT,
    (_S.LATE, _E.COMES_BY_CANCELLED): _S.CANCELLED,
    (_S.LATE, _E.COMES_BY_MOVED): _S.IN_DELAY_TOPIC,
    (_S.LATE, _E.NEVER_CAME): _S.DELIVERED,
}
"""(state, event) -> the next state. Any other event changes nothing."""


def state_of(relay: PartitionRelay, id_: str, due: int, now: int) -> ScheduleState:
    """Return the state of a schedule as far as its relay knows it; `due` is as in the schedule's handle."""
    change = relay.changes.get(id_)
    if change and change.due is None:
        return ScheduleState.DELIVERED if change.is_delivered else ScheduleState.CANCELLED
    if relay.waiting.get(id_):
        return ScheduleState.IN_MEMORY
    if id_ in relay.recent or (change.placed if change else due) < relay.passed(now):
        return ScheduleState.DELIVERED
    is_behind = change is not None and change.live < change.generation
    if id_ in relay.commands.undecided:
        return ScheduleState.SOUGHT if is_behind else ScheduleState.LATE
    return ScheduleState.CHANGED if is_behind else ScheduleState.IN_DELAY_TOPIC
