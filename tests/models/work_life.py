"""The life of a work as a table: the state after each event that changes one.

The drawing of docs/design/states.md is this table, and a test goes through it with public calls of the engine.
"""

from enum import StrEnum
from typing import Any

from headway.core.engine.partition_states import PartitionState
from headway.core.engine.work import Work
from headway.core.engine.work_states import WorkState


class WorkEvent(StrEnum):
    """An event in the life of a work."""

    RECEIVED_FIRST = "received at the head of its lane"
    RECEIVED_BEHIND = "received behind another record"
    RECEIVED_EARLY = "received before its time"
    TURN = "becomes the head"
    TURN_EARLY = "becomes the head before its time"
    TIME = "its time comes"
    TAKEN = "taken"
    TAKEN_ALONG = "taken in a batch"
    FINISHED = "reported done"
    RETRIED = "must be retried"
    LEAVES = "its partition is revoked"
    GIVEN_UP = "abandoned, because its partition is revoked"
    LOST = "its partition is lost"


_S, _E = WorkState, WorkEvent

WORK_TRANSITIONS = {
    (_S.NEW, _E.RECEIVED_FIRST): _S.READY,
    (_S.NEW, _E.RECEIVED_BEHIND): _S.BEHIND,
    (_S.NEW, _E.RECEIVED_EARLY): _S.WAITING,
    (_S.BEHIND, _E.TURN): _S.READY,
    (_S.BEHIND, _E.TURN_EARLY): _S.WAITING,
    (_S.BEHIND, _E.TAKEN_ALONG): _S.RUNNING,
    (_S.WAITING, _E.TIME): _S.READY,
    (_S.READY, _E.TAKEN): _S.RUNNING,
    (_S.READY, _E.TAKEN_ALONG): _S.RUNNING,
    (_S.RUNNING, _E.FINISHED): _S.DONE,
    (_S.RUNNING, _E.RETRIED): _S.REPLACED,
    (_S.RUNNING, _E.GIVEN_UP): _S.STALE,
    (_S.RUNNING, _E.LOST): _S.STALE,
    (_S.STALE, _E.FINISHED): _S.DROPPED,
    (_S.STALE, _E.RETRIED): _S.DROPPED,
    **{(waits, event): _S.DROPPED for waits in (_S.BEHIND, _S.WAITING, _S.READY) for event in (_E.LEAVES, _E.LOST)},
}
"""(state, event) -> the state after it; any other event leaves a work as it is."""

NOT_STARTED = {_S.BEHIND, _S.WAITING, _S.READY}


def state_of(work: Work[Any]) -> WorkState:
    """Return the state of a work, with what the end of its partition has made of it."""
    state, partition = work.state, work.assignment.state
    if state in NOT_STARTED and partition in (PartitionState.LEAVING, PartitionState.GONE):
        return WorkState.DROPPED
    if state is WorkState.RUNNING and partition is PartitionState.GONE:
        return WorkState.STALE
    return state
